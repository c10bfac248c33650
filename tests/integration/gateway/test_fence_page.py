"""/fence in a real browser: drawn, live, whole without the network, and safe against names.

Needs Chromium (``CHROME`` names another place); the Debian package is ``chromium``.
"""

import os
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from kvfence.gateway.fence import Fence
from kvfence.gateway.registry import load_keys
from kvfence.gateway.server import bind, serving
from tests.unit.gateway.fakes import Running, say
from tests.unit.gateway.test_fence import FakeSource

CHROME = os.environ.get("CHROME") or shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = "<img/src=x/onerror=document.title='owned'><script>document.title='owned'</script>"
pytestmark = [
    pytest.mark.skipif(CHROME is None, reason="no Chromium here: apt-get install chromium, or name one with CHROME"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for the module; as root it has no sandbox of its own."""
    async with async_playwright() as playwright:
        arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        running = await playwright.chromium.launch(executable_path=CHROME, args=arguments)
        yield running
        await running.close()


class Open:
    """The page of a running server. Holds: what it asked for and complained of."""

    def __init__(self, page: Page, source: FakeSource, url: str) -> None:
        self.page, self.source, self.url = page, source, url
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    async def go(self) -> None:
        """Open it and wait for the first state."""
        await self.page.goto(f"{self.url}/fence")
        await self.page.wait_for_selector("#live.good")

    async def text(self, selector: str) -> str:
        """What a person reads there."""
        return await self.page.inner_text(selector)

    async def colour_at(self, pool: int, x: int, y: int) -> list[int]:
        """The pixel of a pool's drawing."""
        script = "(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data]"
        return await self.page.locator(".pool canvas").nth(pool).evaluate(script, [x, y])


@pytest_asyncio.fixture(loop_scope="module")
async def opened(browser: Browser, request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """A server with two tenants and an open page on it, 1280 x 800."""
    options: dict[str, Any] = getattr(request, "param", {})
    source = FakeSource(*options.pop("tenants", ("acme", "globex")))
    names, keys = options.pop("names", False), options.pop("keys", None)
    running = Running(say("x"), keys, fence=Fence(source, names=names))
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, bypass_csp=False, **options)
    async with serving(running.app, bind("127.0.0.1", 0), 1) as address:
        yield Open(await context.new_page(), source, address.url)
        await context.close()


async def test_the_page_draws_and_asks_nobody_else(opened: Open) -> None:
    """Pools, counts, tenants, hand-offs and guards are there; every request went to this server; nothing complained."""
    await opened.go()
    assert await opened.text(".pool h2") == "prefill"
    counts = ("free", "5", "cached", "1", "granted", "4", "sealed", "0", "adopted", "0", "quarantined", "0")
    assert (await opened.text(".pool .counts")).split() == list(counts)
    assert await opened.text("#tenants") == "tenant 1\ntenant 2"
    assert "digest-matches @ decode\t0\t1" in await opened.text("#verdicts")
    assert (await opened.text("#handoffs")).count("tenant") == 2
    assert {asked.removeprefix(opened.url) for asked in opened.asked if not asked.startswith("data:")} == {
        "/fence",
        "/fence.json",
    }
    assert opened.complaints == []


async def test_a_page_is_in_its_tenants_colour(opened: Open) -> None:
    """The first tenant's cell and the second's differ, and each is the colour of its swatch."""
    await opened.go()
    size = await opened.page.evaluate("document.querySelector('.pool canvas').clientWidth > 100 ? 18 : 0")
    first, second = await opened.colour_at(0, 8, 13), await opened.colour_at(0, 8 + 2 * size, 13)
    assert first[3] == second[3] == 255
    assert first != second


async def test_it_is_live_without_jumping(opened: Open) -> None:
    """A change shows within seconds; after the first drawing nothing moves on the page."""
    await opened.go()
    await opened.page.evaluate(
        "() => { window.moved = 0; new PerformanceObserver((list) => { for (const each of list.getEntries()) "
        "window.moved += each.value; }).observe({ type: 'layout-shift' }); }"
    )
    opened.source.decisions = {("digest-matches", "decode", "refuse"): 7}
    opened.source.state = "silent"
    await expect(opened.page.locator("#verdicts")).to_contain_text("7")
    await expect(opened.page.locator(".pool .pill").first).to_have_text("silent")
    assert await opened.page.evaluate("window.moved") < 0.01


async def test_a_server_that_stops_is_said_and_the_last_state_stays(opened: Open) -> None:
    """The page says that nobody answers, and for how long."""
    await opened.go()
    await opened.page.route("**/fence.json", lambda route: route.abort())
    await expect(opened.page.locator("#live")).to_contain_text("no answer")
    assert await opened.text(".pool h2") == "prefill"


@pytest.mark.parametrize("opened", [{"tenants": (HOSTILE, "acme"), "names": True}], indirect=True)
async def test_a_hostile_name_is_text(opened: Open) -> None:
    """Markup in a tenant's name is read as it is written, and runs nowhere."""
    await opened.go()
    assert HOSTILE in await opened.text("#tenants")
    assert HOSTILE in await opened.text("#handoffs")
    assert await opened.page.title() == "kvfence: the fence"
    assert await opened.page.locator("img").count() == 0
    assert opened.complaints == []


async def test_injected_markup_would_not_run(opened: Open) -> None:
    """The policy is a second line: the browser refuses an inline script and an inline handler put into the page."""
    await opened.go()
    await opened.page.evaluate(
        "() => { const script = document.createElement('script'); script.textContent = \"document.title = 'owned'\"; "
        "document.body.append(script); const image = document.createElement('div'); "
        "image.setAttribute('onclick', \"document.title = 'owned'\"); document.body.append(image); image.click(); }"
    )
    assert await opened.page.title() == "kvfence: the fence"
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)


async def test_a_pool_can_be_read_without_seeing_it(opened: Open) -> None:
    """The drawing has a name with its counts; arrow keys walk it and each page is said."""
    await opened.go()
    canvas = opened.page.get_by_role("img", name="Pages of prefill: 5 free, 1 cached, 4 granted")
    await canvas.focus()
    await canvas.press("ArrowRight")
    await canvas.press("ArrowRight")
    await canvas.press("ArrowRight")
    assert await opened.text(".pool .at") == "page 2: granted: one writer, tenant 2, attempt 2"
    assert await opened.page.get_by_role("region", name="Hand-offs in flight").count() == 1
    assert await opened.page.get_by_role("status").inner_text() == "live"


@pytest.mark.parametrize("opened", [{"color_scheme": "dark"}], indirect=True)
async def test_dark_and_light_follow_the_reader(opened: Open) -> None:
    """The ground is dark for who wants it dark, light for others, and changes without a reload."""
    await opened.go()
    ground = "() => getComputedStyle(document.body).backgroundColor"
    dark = await opened.page.evaluate(ground)
    await opened.page.emulate_media(color_scheme="light")
    assert dark == "rgb(14, 18, 24)"
    assert await opened.page.evaluate(ground) == "rgb(246, 247, 249)"


async def test_it_fits_a_telephone(opened: Open) -> None:
    """At 390 pixels nothing sticks out to the side."""
    await opened.page.set_viewport_size({"width": 390, "height": 844})
    await opened.go()
    assert await opened.page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_an_operator_signs_in_as_browsers_do(browser: Browser, tmp_path: Any) -> None:
    """With keys the page wants the operator's, as the password; the live part sends it along."""
    (tmp_path / "keys").write_text("sk-acme acme\nsk-ops @operator\n")
    running = Running(say("x"), load_keys(tmp_path / "keys"), fence=Fence(FakeSource("acme")))
    async with serving(running.app, bind("127.0.0.1", 0), 1) as address:
        for password, status in (("sk-acme", 401), ("sk-ops", 200)):
            credentials = {"username": "operator", "password": password}
            context = await browser.new_context(http_credentials=credentials)  # type: ignore[arg-type]
            page = await context.new_page()
            answer = await page.goto(f"{address.url}/fence")
            assert answer is not None
            assert answer.status == status
            if status == 200:
                await page.wait_for_selector("#live.good")
            await context.close()
