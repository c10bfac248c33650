------------------------------ MODULE HandOff ------------------------------
(* The core of a hand-off between one prefill and one decode worker, written
   by hand from ARCHITECTURE.md and docs/assurance.md, as a second opinion on
   src/kvfence/protocol. TLC's graph of it is compared with the graph that
   `step` gives (src/kvfence/prove/judges), state by state and edge by edge.

   Who: attempts 1..N, each a prompt of Sizes[a] pages. The gateway is the
   environment: it offers attempts in order, and every grant becomes a
   Dispatch. A page holds one token, so that no tail is copied. Messages lie in
   a set and arrive in any order; nothing is resent. A transfer is one write a
   page; a write lands its head, its bytes and its tail, in this order. What
   ends writes is the exit of the prefill process.

   Bytes are named <<attempt, page>>; page 0 is the one that decode writes
   itself; <<0, 0>> was never written, <<0, 1>> is what a broken transfer left.

   A pool's free pages are a stack: a grant takes from its end, what is freed
   goes back there, so that the next grant gives the same pages first.         *)
EXTENDS Integers, Sequences, FiniteSets
CONSTANTS Sizes,                                  \* pages of each prompt
          DPages, PPages,                         \* the pools
          Batch,                                  \* writes of one batch at most
          Cancels, Stalls, Dups, Corrupts, Deaths,\* how often each may happen
          QuarRevoke, QuarMismatch, DrainD, DrainP, HoldSource, Tombstone,
          Stamps, Reads, Digest                   \* the guards that are on
VARIABLE s

A == 1..Len(Sizes)
Nothing == <<0, 0>>
Broken == <<0, 1>>
Down(n) == [k \in 1..n |-> n - k]                 \* <<n-1, ..., 0>>

Init == s = [
  dec |-> [a \in A |-> "none"],   \* what an attempt is at decode
  rem |-> [a \in A |-> <<>>],     \* the pages granted for prefill to write
  own |-> [a \in A |-> <<>>],     \* the page that decode writes itself
  out |-> [a \in A |-> 0],        \* tokens that left
  pre |-> [a \in A |-> "none"],   \* what an attempt is at prefill
  src |-> [a \in A |-> <<>>],     \* its source pages
  hold |-> [a \in A |-> FALSE],   \* are they held
  com |-> [a \in A |-> FALSE],    \* is the prompt computed
  pos |-> [a \in A |-> 0],        \* pages posted
  lan |-> [a \in A |-> 0],        \* pages in batches that succeeded
  bat |-> [a \in A |-> FALSE],    \* is a batch outstanding
  unk |-> [a \in A |-> FALSE],    \* did one end in non-success
  ans |-> [a \in A |-> FALSE],    \* does decode wait for Drained or Unknown
  M |-> {},                       \* messages <<kind, attempt>>
  W |-> {},                       \* writes <<attempt, page, next part, late>>
  dm |-> [p \in 1..DPages |-> <<Nothing, Nothing, Nothing>>], \* head, bytes, tail
  pm |-> [p \in 1..PPages |-> Nothing],
  dfree |-> Down(DPages), pfree |-> Down(PPages),
  dwait |-> <<>>, pwait |-> <<>>, \* who waits for pages
  quar |-> <<>>,                  \* <<attempt, pages, may *drained* end it>>
  leak |-> FALSE,                 \* a token left that read foreign bytes
  dead |-> FALSE,                 \* prefill's process has ended
  b |-> <<Cancels, Stalls, Dups, Corrupts, Deaths>>]

---------------------------------------------------------------------------
(* Pools. *)
Rev(q) == [k \in 1..Len(q) |-> q[Len(q) + 1 - k]]
Top(q, n) == Rev(SubSeq(q, Len(q) - n + 1, Len(q)))
Rest(q, n) == SubSeq(q, 1, Len(q) - n)
Without(q, a) == SelectSeq(q, LAMBDA x : x # a)
FreeD(t, pages) == [t EXCEPT !.dfree = @ \o Rev(pages)]
FreeP(t, pages) == [t EXCEPT !.pfree = @ \o Rev(pages)]
Send(t, kind, a) == [t EXCEPT !.M = @ \cup {<<kind, a>>}]
Rng(q) == {q[k] : k \in DOMAIN q}

---------------------------------------------------------------------------
(* Decode. Whoever waits longest is granted all its pages at once. *)
RECURSIVE GrantD(_)
GrantD(t) ==
  IF t.dwait = <<>> \/ Sizes[Head(t.dwait)] + 1 > Len(t.dfree) THEN t ELSE
  LET a == Head(t.dwait)
      left == Rest(t.dfree, Sizes[a])
      u == [t EXCEPT !.dec[a] = "granted", !.rem[a] = Top(t.dfree, Sizes[a]),
                     !.own[a] = Top(left, 1), !.dfree = Rest(left, 1),
                     !.dwait = Tail(@)]
  IN GrantD(Send(u, "dispatch", a))

(* Put pages aside; where no writer is left they are free at once. *)
Aside(t, a, pages, drains) ==
  IF t.dead THEN FreeD(t, pages)
  ELSE [t EXCEPT !.quar = Append(@, <<a, pages, drains>>)]

(* A hand-off ends before adoption. mis: its bytes were not as promised. *)
GiveUp(t, a, mis) ==
  IF t.dec[a] = "waiting"
  THEN [t EXCEPT !.dec[a] = "closed", !.dwait = Without(@, a)]
  ELSE LET keeps == IF mis THEN QuarMismatch ELSE QuarRevoke
           u == IF keeps THEN Aside(t, a, t.rem[a], ~mis) ELSE FreeD(t, t.rem[a])
           v == [FreeD(u, t.own[a]) EXCEPT !.own[a] = <<>>,
                 !.dec[a] = IF keeps /\ ~t.dead THEN "revoked" ELSE "closed"]
       IN IF t.dead THEN v ELSE Send(v, "abort", a)

(* A running sequence ends; bad: pages that showed another's head. *)
EndRunning(t, a, bad) ==
  LET badR == Rng(t.rem[a]) \cap bad # {}
      badO == Rng(t.own[a]) \cap bad # {}
      Put(u, pages) == IF QuarMismatch THEN Aside(u, a, pages, FALSE) ELSE FreeD(u, pages)
      u1 == IF badR THEN Put(t, t.rem[a]) ELSE t
      u2 == IF badO THEN Put(u1, t.own[a]) ELSE u1
      u3 == IF badR THEN u2 ELSE FreeD(u2, t.rem[a])
      u4 == IF badO THEN u3 ELSE FreeD(u3, t.own[a])
  IN [u4 EXCEPT !.dec[a] = "closed", !.own[a] = <<>>]

(* The last write into what was revoked for this attempt has ended. *)
Fence(t, a) ==
  LET k == CHOOSE k \in DOMAIN t.quar : t.quar[k][1] = a
      u == [t EXCEPT !.quar = SubSeq(@, 1, k - 1) \o SubSeq(@, k + 1, Len(@))]
  IN [FreeD(u, t.quar[k][2]) EXCEPT !.dec[a] = "closed"]

Drains(t, a) == \E k \in DOMAIN t.quar : t.quar[k][1] = a /\ t.quar[k][3]

DSent(t, a) ==
  CASE t.dec[a] = "granted" -> [t EXCEPT !.dec[a] = "verifying"]
    [] t.dec[a] = "verifying" -> t
    [] t.dec[a] \in {"running", "closed"} /\ t.out[a] > 0 -> Send(t, "commit", a)
    [] OTHER -> Send(t, "abort", a)
DFailed(t, a) ==
  CASE t.dec[a] = "granted" -> GiveUp(t, a, FALSE)
    [] t.dec[a] \in {"none", "revoked", "closed"} -> Send(t, "abort", a)
    [] OTHER -> t
DDrained(t, a) == IF t.dec[a] = "revoked" /\ Drains(t, a) THEN Fence(t, a) ELSE t
DUnknown(t, a) == IF t.dec[a] = "revoked" /\ ~DrainD THEN Fence(t, a) ELSE t

---------------------------------------------------------------------------
(* Prefill. Whoever waits longest reserves its whole prompt at once. *)
RECURSIVE GrantP(_)
GrantP(t) ==
  IF t.pwait = <<>> \/ Sizes[Head(t.pwait)] > Len(t.pfree) THEN t ELSE
  LET a == Head(t.pwait)
  IN GrantP([t EXCEPT !.pre[a] = "running", !.src[a] = Top(t.pfree, Sizes[a]),
                      !.hold[a] = TRUE, !.pfree = Rest(@, Sizes[a]), !.pwait = Tail(@)])

(* The next batch of a computed prompt, at most Batch pages. *)
Post(t, a) ==
  LET n == IF Sizes[a] - t.pos[a] < Batch THEN Sizes[a] - t.pos[a] ELSE Batch
  IN IF n = 0 THEN t ELSE
     [t EXCEPT !.pos[a] = @ + n, !.bat[a] = TRUE,
               !.W = @ \cup {<<a, i, 0, FALSE>> : i \in (t.pos[a] + 1)..(t.pos[a] + n)}]

(* Free the source and answer decode, as far as batches have ended. *)
Settle(t, a) ==
  LET u == IF t.hold[a] /\ (~t.bat[a] \/ ~HoldSource)
           THEN [FreeP(t, t.src[a]) EXCEPT !.hold[a] = FALSE] ELSE t
      v == IF u.pre[a] = "aborting" /\ ~u.bat[a] THEN [u EXCEPT !.pre[a] = "closed"] ELSE u
  IN IF v.ans[a] /\ (~v.bat[a] \/ ~DrainP)
     THEN [Send(v, IF v.unk[a] THEN "unknown" ELSE "drained", a) EXCEPT !.ans[a] = FALSE]
     ELSE v

PDispatch(t, a) ==
  CASE t.pre[a] = "none" /\ Sizes[a] > PPages -> Send([t EXCEPT !.pre[a] = "failed"], "failed", a)
    [] t.pre[a] = "none" -> [t EXCEPT !.pre[a] = "waiting", !.pwait = Append(@, a)]
    [] t.pre[a] = "sent" -> Send(t, "sent", a)
    [] t.pre[a] = "failed" -> Send(t, "failed", a)
    [] OTHER -> t
PCommit(t, a) == IF t.pre[a] = "sent" THEN Settle([t EXCEPT !.pre[a] = "closed"], a) ELSE t
PAbort(t, a) ==
  CASE t.pre[a] = "none" ->
         Send(IF Tombstone THEN [t EXCEPT !.pre[a] = "closed"] ELSE t, "drained", a)
    [] t.pre[a] = "closed" -> Send(t, IF t.unk[a] THEN "unknown" ELSE "drained", a)
    [] OTHER ->
         Settle([t EXCEPT !.ans[a] = TRUE, !.pwait = Without(@, a),
                          !.pre[a] = IF t.bat[a] THEN "aborting"
                                     ELSE IF @ = "aborting" THEN @ ELSE "closed"], a)

---------------------------------------------------------------------------
(* What can happen. *)
None == {a \in A : s.dec[a] = "none"}
New == CHOOSE a \in None : \A c \in None : a <= c

Offer == /\ None # {} /\ ~s.dead
         /\ s' = GrantD([s EXCEPT !.dec[New] = "waiting", !.dwait = Append(@, New)])

(* A client leaves: what was not offered yet is remembered as over. *)
Cancel(a) ==
  /\ s.b[1] > 0
  /\ s.dec[a] = "none" => (a = New /\ ~s.dead)
  /\ LET t == [s EXCEPT !.b[1] = @ - 1]
         u == CASE s.dec[a] = "none" -> [t EXCEPT !.dec[a] = "closed"]
                [] s.dec[a] \in {"waiting", "granted", "verifying"} -> GiveUp(t, a, FALSE)
                [] s.dec[a] = "running" -> EndRunning(t, a, {})
                [] OTHER -> t
     IN s' = GrantD(u)

Received(t, kind, a) ==
  CASE kind = "dispatch" -> GrantP(PDispatch(t, a))
    [] kind = "commit" -> GrantP(PCommit(t, a))
    [] kind = "abort" -> GrantP(PAbort(t, a))
    [] kind = "sent" -> GrantD(DSent(t, a))
    [] kind = "failed" -> GrantD(DFailed(t, a))
    [] kind = "drained" -> GrantD(DDrained(t, a))
    [] kind = "unknown" -> GrantD(DUnknown(t, a))
Deliver(m) == s' = Received([s EXCEPT !.M = @ \ {m}], m[1], m[2])
Again(m) == s.b[3] > 0 /\ s' = Received([s EXCEPT !.b[3] = @ - 1], m[1], m[2])

(* A part of a write lands. It reads its source now, or carries what it read
   when its batch was given up. *)
Landed(t, w, bytes) ==
  LET page == t.rem[w[1]][w[2]] + 1
      left == t.W \ {w}
  IN [t EXCEPT !.dm[page][w[3] + 1] = bytes,
               !.W = IF w[3] < 2 THEN left \cup {<<w[1], w[2], w[3] + 1, w[4]>>} ELSE left]
Land(w) == s' = Landed(s, w, IF w[4] THEN <<w[1], w[2]>> ELSE s.pm[s.src[w[1]][w[2]] + 1])
Corrupt(w) == /\ s.b[4] > 0 /\ w[3] = 1
              /\ s' = Landed([s EXCEPT !.b[4] = @ - 1], w, Broken)

Compute(a) ==
  /\ ~s.dead /\ s.pre[a] = "running" /\ ~s.com[a]
  /\ LET t == [s EXCEPT !.com[a] = TRUE,
               !.pm = [p \in 1..PPages |->
                         IF \E i \in DOMAIN s.src[a] : s.src[a][i] + 1 = p
                         THEN <<a, CHOOSE i \in DOMAIN s.src[a] : s.src[a][i] + 1 = p>>
                         ELSE s.pm[p]]]
     IN s' = GrantP(Post(t, a))
BatchEnds(a) ==
  /\ ~s.dead /\ s.bat[a] /\ ~\E w \in s.W : w[1] = a /\ ~w[4]
  /\ LET t == [s EXCEPT !.bat[a] = FALSE, !.lan[a] = s.pos[a]]
         u == CASE t.pre[a] = "running" /\ t.lan[a] = Sizes[a] ->
                     Send([t EXCEPT !.pre[a] = "sent"], "sent", a)
                [] t.pre[a] = "running" -> Post(t, a)
                [] OTHER -> Settle(t, a)
     IN s' = GrantP(u)
(* A batch is given up: its writes may land later. *)
GivesUp(a) ==
  /\ ~s.dead /\ s.bat[a] /\ s.b[2] > 0
  /\ LET t == [s EXCEPT !.b[2] = @ - 1, !.bat[a] = FALSE, !.unk[a] = TRUE,
               !.W = {<<w[1], w[2], w[3], w[4] \/ w[1] = a>> : w \in @}]
         u == IF t.pre[a] = "running" THEN Send([t EXCEPT !.pre[a] = "failed"], "failed", a) ELSE t
     IN s' = GrantP(Settle(u, a))

Verify(a) ==
  /\ s.dec[a] = "verifying"
  /\ LET cell(i) == s.dm[s.rem[a][i] + 1]
         stamped == \A i \in 1..Sizes[a] : cell(i)[1] = <<a, i>> /\ cell(i)[3] = <<a, i>>
         sound == \A i \in 1..Sizes[a] : cell(i)[2] = <<a, i>> /\ cell(i)[3] = <<a, i>>
         t == IF (Stamps /\ ~stamped) \/ (Digest /\ ~sound) THEN GiveUp(s, a, TRUE)
              ELSE Send([s EXCEPT !.dec[a] = "running", !.out[a] = 1,
                                  !.dm[s.own[a][1] + 1][1] = <<a, 0>>], "commit", a)
     IN s' = GrantD(t)

(* A pass writes the own page, reads every page, and compares heads. *)
Pass(a) ==
  /\ s.dec[a] = "running"
  /\ LET t == [s EXCEPT !.dm[s.own[a][1] + 1][2] = <<a, 0>>]
         rows == {<<s.rem[a][i], <<a, i>>>> : i \in 1..Sizes[a]} \cup {<<s.own[a][1], <<a, 0>>>>}
         bad == {r[1] : r \in {x \in rows : t.dm[x[1] + 1][1] # x[2]}}
         foreign == \E r \in rows : t.dm[r[1] + 1][2] # r[2]
         u == IF Reads /\ bad # {} THEN EndRunning(t, a, bad)
              ELSE [EndRunning(t, a, {}) EXCEPT !.out[a] = 2, !.leak = @ \/ foreign]
     IN s' = GrantD(u)

(* Prefill's process ends, and is reaped: nothing of it lands any more. *)
RECURSIVE GiveUpAll(_, _)
GiveUpAll(t, a) ==
  IF a > Len(Sizes) THEN t ELSE
  GiveUpAll(IF t.dec[a] \in {"waiting", "granted", "verifying"} THEN GiveUp(t, a, FALSE) ELSE t, a + 1)
RECURSIVE FenceAll(_)
FenceAll(t) ==
  IF t.quar = <<>> THEN t ELSE
  LET e == Head(t.quar)
      u == [FreeD(t, e[2]) EXCEPT !.quar = Tail(@),
            !.dec[e[1]] = IF @ = "revoked" THEN "closed" ELSE @]
  IN FenceAll(u)
Die == /\ ~s.dead /\ s.b[5] > 0
       /\ LET t == [s EXCEPT !.b[5] = @ - 1, !.dead = TRUE, !.W = {}, !.M = {}]
          IN s' = GrantD(FenceAll(GiveUpAll(t, 1)))

Next == \/ Offer \/ Die
        \/ \E a \in A : Cancel(a) \/ Compute(a) \/ BatchEnds(a) \/ GivesUp(a) \/ Verify(a) \/ Pass(a)
        \/ \E m \in s.M : Deliver(m) \/ Again(m)
        \/ \E w \in s.W : Land(w) \/ Corrupt(w)
Spec == Init /\ [][Next]_s

---------------------------------------------------------------------------
(* What is promised; with every guard on TLC finds both to hold. *)
NoLeak == ~s.leak
Held(a) == s.dec[a] \in {"granted", "verifying", "running", "revoked"}
NoStrayWrite == \A w \in s.W : Held(w[1]) /\ s.dec[w[1]] # "running"
=============================================================================
