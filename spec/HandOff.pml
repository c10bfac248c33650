/* The core of a hand-off for SPIN: the same small world as HandOff.tla, in C
   inside Promela. Read HandOff.tla first; names here are the same. SPIN's
   count of states is compared with ours (src/kvfence/prove/judges/spin.py).

   N attempts of SIZE0 and SIZE1 pages, D and P pages in the pools. Bytes are
   16 * attempt + page, attempts from 1; 0 was never written, 1 is broken. Every
   slot that is not in use is 0 or NO, so that equal states are equal bytes.   */
c_decl {
#ifndef N
#define N 1
#endif
#ifndef SIZE1
#define SIZE1 1
#endif
#define K 2
#define NO 255
enum { D_NONE, D_WAITING, D_GRANTED, D_VERIFYING, D_RUNNING, D_REVOKED, D_CLOSED };
enum { P_NONE, P_WAITING, P_RUNNING, P_SENT, P_FAILED, P_ABORTING, P_CLOSED };
enum { M_DISPATCH, M_COMMIT, M_ABORT, M_SENT, M_FAILED, M_DRAINED, M_UNKNOWN, M_KINDS };
enum { CANCEL, STALL, DUP, CORRUPT, DEATH };
typedef unsigned char u8;
typedef struct {
  u8 dec[N], out[N], pre[N], hold[N], com[N], pos[N], lan[N], bat[N], unk[N], ans[N];
  u8 rem[N][K], own[N], src[N][K];
  u8 M[M_KINDS][N], W[N][K];                  /* W: 0 none, 1 + next part, + 3 if late */
  u8 dm[D][3], pm[P];
  u8 dfree[D], nd, pfree[P], np, dwait[N], ndw, pwait[N], npw;
  u8 qa[2 * N], qown[2 * N], qdrains[2 * N], nq; /* qown: NO for the lot of rem, else the page */
  u8 leak, dead, b[5];
} S;
};
c_state "S s" "Global"

c_code {
static int size(int a) { return a ? SIZE1 : SIZE0; }
static void out_of(u8 *q, u8 *n, int at) { int k; for (k = at; k + 1 < *n; k++) q[k] = q[k + 1]; q[--*n] = 0; }
static void without(u8 *q, u8 *n, int a) { int k; for (k = 0; k < *n; k++) if (q[k] == a + 1) { out_of(q, n, k); return; } }
static u8 top(u8 *q, u8 *n) { u8 p = q[--*n]; q[*n] = NO; return p; }
static void free_rem(S *s, int a) { int k; for (k = size(a) - 1; k >= 0; k--) s->dfree[s->nd++] = s->rem[a][k]; }
static void free_own(S *s, int a) { if (s->own[a] != NO) { s->dfree[s->nd++] = s->own[a]; s->own[a] = NO; } }
static void start(S *s) {
  int k; memset(s, 0, sizeof *s); memset(s->rem, NO, sizeof s->rem); memset(s->own, NO, sizeof s->own); memset(s->src, NO, sizeof s->src);
  for (k = 0; k < D; k++) s->dfree[k] = D - 1 - k;
  for (k = 0; k < P; k++) s->pfree[k] = P - 1 - k;
  s->nd = D; s->np = P; s->b[CANCEL] = CANCELS; s->b[STALL] = STALLS; s->b[DUP] = DUPS; s->b[CORRUPT] = CORRUPTS; s->b[DEATH] = DEATHS;
}
/* ---- decode */
static void grant_d(S *s) {
  while (s->ndw) {
    int a = s->dwait[0] - 1, k;
    if (size(a) + 1 > s->nd) return;
    for (k = 0; k < size(a); k++) s->rem[a][k] = top(s->dfree, &s->nd);
    s->own[a] = top(s->dfree, &s->nd);
    s->dec[a] = D_GRANTED; s->M[M_DISPATCH][a] = 1; out_of(s->dwait, &s->ndw, 0);
  }
}
static void aside(S *s, int a, int own, int drains) { s->qa[s->nq] = a + 1; s->qown[s->nq] = own; s->qdrains[s->nq++] = drains; }
static void give_up(S *s, int a, int mis) {
  if (s->dec[a] == D_WAITING) { s->dec[a] = D_CLOSED; without(s->dwait, &s->ndw, a); return; }
  int kept = (mis ? QUARMISMATCH : QUARREVOKE) && !s->dead;
  if (kept) aside(s, a, NO, !mis); else free_rem(s, a);
  free_own(s, a);
  s->dec[a] = kept ? D_REVOKED : D_CLOSED;
  if (!s->dead) s->M[M_ABORT][a] = 1;
}
static void end_running(S *s, int a, int bad_rem, int bad_own) {
  int keeps = QUARMISMATCH && !s->dead;
  if (bad_rem) { if (keeps) aside(s, a, NO, 0); else free_rem(s, a); }
  if (bad_own) { if (keeps) { aside(s, a, s->own[a], 0); s->own[a] = NO; } else free_own(s, a); }
  if (!bad_rem) free_rem(s, a);
  free_own(s, a);
  s->dec[a] = D_CLOSED;
}
static void fence_at(S *s, int k) {
  int a = s->qa[k] - 1, n1 = s->nq, n2 = s->nq; u8 m1 = n1, m2 = n2;
  if (s->qown[k] == NO) free_rem(s, a); else s->dfree[s->nd++] = s->qown[k];
  out_of(s->qown, &m1, k); out_of(s->qdrains, &m2, k); out_of(s->qa, &s->nq, k);
  if (s->dec[a] == D_REVOKED) s->dec[a] = D_CLOSED;
}
static void fence(S *s, int a, int any) { int k; for (k = 0; k < s->nq; k++) if (s->qa[k] == a + 1 && (any || s->qdrains[k])) { fence_at(s, k); return; } }
/* ---- prefill */
static void grant_p(S *s) {
  while (s->npw) {
    int a = s->pwait[0] - 1, k;
    if (size(a) > s->np) return;
    for (k = 0; k < size(a); k++) s->src[a][k] = top(s->pfree, &s->np);
    s->pre[a] = P_RUNNING; s->hold[a] = 1; out_of(s->pwait, &s->npw, 0);
  }
}
static void post(S *s, int a) {
  int n = size(a) - s->pos[a], k; if (n > BATCH) n = BATCH; if (!n) return;
  for (k = 0; k < n; k++) s->W[a][s->pos[a] + k] = 1;
  s->pos[a] += n; s->bat[a] = 1;
}
static void settle(S *s, int a) {
  int k;
  if (s->hold[a] && (!s->bat[a] || !HOLDSOURCE)) { for (k = size(a) - 1; k >= 0; k--) s->pfree[s->np++] = s->src[a][k]; s->hold[a] = 0; }
  if (s->pre[a] == P_ABORTING && !s->bat[a]) s->pre[a] = P_CLOSED;
  if (s->ans[a] && (!s->bat[a] || !DRAINP)) { s->M[s->unk[a] ? M_UNKNOWN : M_DRAINED][a] = 1; s->ans[a] = 0; }
}
/* ---- what can happen */
static int new_of(S *s) { int a; for (a = 0; a < N; a++) if (s->dec[a] == D_NONE) return a; return NO; }
static void offer(S *s) { int a = new_of(s); s->dec[a] = D_WAITING; s->dwait[s->ndw++] = a + 1; grant_d(s); }
static void cancel(S *s, int a) {
  s->b[CANCEL]--;
  if (s->dec[a] == D_NONE) s->dec[a] = D_CLOSED;
  else if (s->dec[a] <= D_VERIFYING) give_up(s, a, 0);
  else if (s->dec[a] == D_RUNNING) end_running(s, a, 0, 0);
  grant_d(s);
}
static void receive(S *s, int kind, int a, int again) {
  if (again) s->b[DUP]--; else s->M[kind][a] = 0;
  switch (kind) {
  case M_DISPATCH:
    if (s->pre[a] == P_NONE && size(a) > P) { s->pre[a] = P_FAILED; s->M[M_FAILED][a] = 1; }
    else if (s->pre[a] == P_NONE) { s->pre[a] = P_WAITING; s->pwait[s->npw++] = a + 1; }
    else if (s->pre[a] == P_SENT) s->M[M_SENT][a] = 1;
    else if (s->pre[a] == P_FAILED) s->M[M_FAILED][a] = 1;
    grant_p(s); return;
  case M_COMMIT:
    if (s->pre[a] == P_SENT) { s->pre[a] = P_CLOSED; settle(s, a); }
    grant_p(s); return;
  case M_ABORT:
    if (s->pre[a] == P_NONE) { s->M[M_DRAINED][a] = 1; if (TOMBSTONE) s->pre[a] = P_CLOSED; }
    else if (s->pre[a] == P_CLOSED) s->M[s->unk[a] ? M_UNKNOWN : M_DRAINED][a] = 1;
    else {
      s->ans[a] = 1; without(s->pwait, &s->npw, a);
      if (s->bat[a]) s->pre[a] = P_ABORTING; else if (s->pre[a] != P_ABORTING) s->pre[a] = P_CLOSED;
      settle(s, a);
    }
    grant_p(s); return;
  case M_SENT:
    if (s->dec[a] == D_GRANTED) s->dec[a] = D_VERIFYING;
    else if (s->dec[a] == D_VERIFYING) ;
    else if (s->dec[a] >= D_RUNNING && s->dec[a] != D_REVOKED && s->out[a]) s->M[M_COMMIT][a] = 1;
    else s->M[M_ABORT][a] = 1;
    break;
  case M_FAILED:
    if (s->dec[a] == D_GRANTED) give_up(s, a, 0);
    else if (s->dec[a] == D_NONE || s->dec[a] >= D_REVOKED) s->M[M_ABORT][a] = 1;
    break;
  case M_DRAINED: if (s->dec[a] == D_REVOKED) fence(s, a, 0); break;
  case M_UNKNOWN: if (s->dec[a] == D_REVOKED && !DRAIND) fence(s, a, 1); break;
  }
  grant_d(s);
}
static void land(S *s, int a, int i, int broken) {
  int late = s->W[a][i] > 3, part = (s->W[a][i] - 1) % 3, bytes = late ? 16 * (a + 1) + i + 1 : s->pm[s->src[a][i]];
  if (broken) { s->b[CORRUPT]--; bytes = 1; }
  s->dm[s->rem[a][i]][part] = bytes;
  s->W[a][i] = part == 2 ? 0 : s->W[a][i] + 1;
}
static void compute(S *s, int a) { int k; s->com[a] = 1; for (k = 0; k < size(a); k++) s->pm[s->src[a][k]] = 16 * (a + 1) + k + 1; post(s, a); grant_p(s); }
static void batch_ends(S *s, int a) {
  s->bat[a] = 0; s->lan[a] = s->pos[a];
  if (s->pre[a] == P_RUNNING && s->lan[a] == size(a)) { s->pre[a] = P_SENT; s->M[M_SENT][a] = 1; }
  else if (s->pre[a] == P_RUNNING) post(s, a); else settle(s, a);
  grant_p(s);
}
static void gives_up(S *s, int a) {
  int k; s->b[STALL]--; s->bat[a] = 0; s->unk[a] = 1;
  for (k = 0; k < K; k++) if (s->W[a][k] && s->W[a][k] <= 3) s->W[a][k] += 3;
  if (s->pre[a] == P_RUNNING) { s->pre[a] = P_FAILED; s->M[M_FAILED][a] = 1; }
  settle(s, a); grant_p(s);
}
static void verify(S *s, int a) {
  int k, stamped = 1, sound = 1;
  for (k = 0; k < size(a); k++) {
    u8 *c = s->dm[s->rem[a][k]], own = 16 * (a + 1) + k + 1;
    if (c[0] != own || c[2] != own) stamped = 0;
    if (c[1] != own || c[2] != own) sound = 0;
  }
  if ((STAMPS && !stamped) || (DIGEST && !sound)) give_up(s, a, 1);
  else { s->dec[a] = D_RUNNING; s->out[a] = 1; s->dm[s->own[a]][0] = 16 * (a + 1); s->M[M_COMMIT][a] = !s->dead ? 1 : s->M[M_COMMIT][a]; }
  grant_d(s);
}
static void pass(S *s, int a) {
  int k, bad = 0, bad_own, foreign = 0;
  s->dm[s->own[a]][1] = 16 * (a + 1);
  for (k = 0; k < size(a); k++) {
    u8 *c = s->dm[s->rem[a][k]], own = 16 * (a + 1) + k + 1;
    if (c[0] != own) bad = 1;
    if (c[1] != own) foreign = 1;
  }
  bad_own = s->dm[s->own[a]][0] != 16 * (a + 1);
  if (READS && (bad || bad_own)) end_running(s, a, bad, bad_own);
  else { end_running(s, a, 0, 0); s->out[a] = 2; s->leak |= foreign; }
  grant_d(s);
}
static void die(S *s) {
  int a; s->b[DEATH]--; s->dead = 1; memset(s->W, 0, sizeof s->W); memset(s->M, 0, sizeof s->M);
  for (a = 0; a < N; a++) if (s->dec[a] >= D_WAITING && s->dec[a] <= D_VERIFYING) give_up(s, a, 0);
  while (s->nq) fence_at(s, 0);
  grant_d(s);
}
}

#define MAY(guard, effect) :: d_step { c_expr { guard } -> c_code { effect; } }
#define MESSAGE(k, a) \
  MAY(now.s.M[k][a], receive(&now.s, k, a, 0)) \
  MAY(now.s.M[k][a] && now.s.b[DUP], receive(&now.s, k, a, 1))
#define WRITE(a, i) \
  MAY(now.s.W[a][i], land(&now.s, a, i, 0)) \
  MAY(now.s.W[a][i] % 3 == 2 && now.s.b[CORRUPT], land(&now.s, a, i, 1))
/* SPIN takes no calls in a guard. W - 1u > 2u: no write of a live batch is left.
   before: the attempt before it was offered or cancelled.                     */
#define ATTEMPT(a, before) \
  MAY(now.s.b[CANCEL] && now.s.dec[a] != D_NONE, cancel(&now.s, a)) \
  MAY(now.s.b[CANCEL] && now.s.dec[a] == D_NONE && !now.s.dead && before, cancel(&now.s, a)) \
  MAY(!now.s.dead && now.s.pre[a] == P_RUNNING && !now.s.com[a], compute(&now.s, a)) \
  MAY(!now.s.dead && now.s.bat[a] && now.s.W[a][0] - 1u > 2u && now.s.W[a][1] - 1u > 2u, batch_ends(&now.s, a)) \
  MAY(!now.s.dead && now.s.bat[a] && now.s.b[STALL], gives_up(&now.s, a)) \
  MAY(now.s.dec[a] == D_VERIFYING, verify(&now.s, a)) \
  MAY(now.s.dec[a] == D_RUNNING, pass(&now.s, a)) \
  MESSAGE(M_DISPATCH, a) MESSAGE(M_COMMIT, a) MESSAGE(M_ABORT, a) MESSAGE(M_SENT, a) \
  MESSAGE(M_FAILED, a) MESSAGE(M_DRAINED, a) MESSAGE(M_UNKNOWN, a) \
  WRITE(a, 0) WRITE(a, 1)

active proctype core() {
  d_step { c_code { start(&now.s); } }
  end: do
    MAY(!now.s.dead && now.s.dec[N - 1] == D_NONE, offer(&now.s))
    MAY(now.s.b[DEATH] && !now.s.dead, die(&now.s))
    ATTEMPT(0, 1)
#if N > 1
    ATTEMPT(1, now.s.dec[0] != D_NONE)
#endif
  od
}
