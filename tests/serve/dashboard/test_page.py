"""The page in a real browser, while the server works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from octavo.engine.client import EngineStats
from tests.scripted_engine import Script
from tests.serve.dashboard.chromium import PROGRAM, Browser, browser
from tests.serve.serving import Served, served

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed (apt-get install chromium)")
FIGURES = ("ttft", "itl", "generated", "prompt", "requests", "memory", "batch", "events", "startup")
VISIBLE = "[...document.querySelectorAll('figure:not([hidden])')].map(one => one.id)"
OVERLAPS = """[...document.querySelectorAll('figure:not([hidden]), .tile')].map(one => one.getBoundingClientRect()).some(
    (a, i, all) => all.slice(i + 1).some(
        b => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1))"""
DRAWN = "document.querySelector('#ttft .line')?.getAttribute('d')?.includes('L')"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """Works until the end: four streams, one after the other, and an engine that says how full it is."""
    with served(Script(["word "], step_s=0.02, prefill_s=0.05, forever=True, num_cached_tokens=2), api_key=("secret",)) as up:
        up.front.metrics.startup_s = {"import torch": 3.0, "load weights": 1.0}
        steps = 0

        async def stats() -> list[EngineStats]:
            nonlocal steps
            steps += 10
            sizes = [(1.0, steps), (2.0, 0), (4.0, 3 * steps), (float("inf"), 0)]
            counters = {"oom_events": steps // 40, "kv_evictions": steps}
            return [EngineStats(len(up.engine.active), 2, 0.25, 0, steps, steps // 2, counters=counters, histograms={"batch_size": sizes})]

        up.engine.stats = stats  # pyright: ignore
        done = threading.Event()

        def ask() -> None:
            with httpx.Client(headers={"Authorization": "Bearer secret"}) as http:
                while not done.is_set():
                    http.post(up.url + "/v1/completions", json={"prompt": "Hi", "max_tokens": 40, "stream": True}).raise_for_status()

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            yield up
            done.set()
            for one in asking:
                one.result(20)


def test_a_key_is_asked_for_once_and_then_all_is_drawn(chromium: Browser, server: Served) -> None:
    chromium.password = "wrong"
    chromium.open(server.url + "/dashboard")
    assert chromium.num_asked > 1, "a wrong key is asked for again"
    assert chromium.value("document.querySelector('figure')") is None
    chromium.complaints.clear()
    chromium.password, chromium.num_asked = "secret", 0
    chromium.open(server.url + "/dashboard")
    chromium.wait_for(DRAWN)
    asked = chromium.num_asked
    chromium.wait_for("document.querySelectorAll('#events .mark').length > 0")
    assert chromium.num_asked == asked, "it is asked for once, not for every reading"
    assert set(FIGURES) == set(chromium.value(VISIBLE)), "no advice is shown where there is none"
    server.engine.findings = [{"kind": "saturated", "evidence": "9 wait", "advice": "add one", "flags": []}]
    chromium.wait_for("document.querySelector('#advice:not([hidden])')?.textContent.endsWith('saturated: 9 wait. add one')")
    server.engine.findings = []
    chromium.wait_for("document.querySelector('#advice').hidden")
    assert chromium.value("document.querySelector('#model').textContent") == "tiny"
    assert chromium.value("document.querySelector('#state').textContent") == "ready"
    assert [one for one in chromium.complaints if "favicon" not in one] == [], "a refusal is no page, and has no icon"


def number(chromium: Browser, name: str) -> float:
    return float(chromium.value(f"document.querySelector('#now-{name}').textContent").replace(",", ""))


def test_the_figures_are_those_of_the_load(chromium: Browser, server: Served) -> None:
    chromium.open(server.url + "/dashboard")
    chromium.wait_for(DRAWN)
    assert chromium.value("document.querySelector('#now-itl').nextElementSibling.textContent").endswith("s")
    assert number(chromium, "itl") > 0
    assert number(chromium, "ttft") > 0
    assert number(chromium, "generated") > 0
    assert number(chromium, "kv") == 25
    assert "50 %" in chromium.value("document.querySelector('#more-prompt').textContent")
    assert "2 waiting" in chromium.value("document.querySelector('#more-running').textContent")
    texts = chromium.value("[...document.querySelectorAll('#batch svg text')].map(one => one.textContent)")
    assert [text for text in texts if "%" in text] == ["25 %", "75 %"]
    assert chromium.value("document.querySelectorAll('#events .mark').length") > 0
    assert "ready after 4.00 s" in chromium.value("document.querySelector('#startup .legend').textContent")


def test_pointing_at_a_time_tells_its_values(chromium: Browser, server: Served) -> None:
    chromium.open(server.url + "/dashboard")
    chromium.wait_for(DRAWN)
    box = "document.querySelector('#itl .plot').getBoundingClientRect()"
    x, y = chromium.value(f"[{box}.right - 12, {box}.top + 30]")
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert chromium.value("document.querySelector('#itl .reader').hidden") is False
    assert chromium.value("document.querySelectorAll('#itl .cross').length") == 1


@pytest.mark.parametrize(("width", "height", "dark"), [(390, 844, True), (800, 1100, False), (1920, 1080, True), (3840, 2160, False)])
def test_it_fits_a_phone_and_a_wall(chromium: Browser, server: Served, width: int, height: int, dark: bool) -> None:
    chromium.open(server.url + "/dashboard", width, height, dark)
    chromium.wait_for(DRAWN)
    page = chromium.value("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    assert page[0] <= width, "nothing is cut off at the side"
    if width > 1900:
        assert page[1] <= height, "a wall shows all of it"
    low = "Math.min(...[...document.querySelectorAll('.plot:not([hidden])')].map(one => Math.min(one.clientHeight, one.clientWidth)))"
    assert chromium.value(low) > 100
    assert chromium.value(OVERLAPS) is False
    paper = chromium.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper.strip("rgb()").split(","))) < 200) == dark


def test_the_choice_of_time_and_colours_is_kept(chromium: Browser, server: Served) -> None:
    chromium.open(server.url + "/dashboard", dark=True)
    chromium.wait_for(DRAWN)
    chromium.value("document.querySelector('[data-span=\"900\"]').click(); document.querySelector('#theme').click()")
    chromium.open(server.url + "/dashboard", dark=True)
    chromium.wait_for(DRAWN)
    assert chromium.value("document.querySelector('[aria-pressed=true]').dataset.span") == "900"
    assert chromium.value("document.documentElement.dataset.theme") == "light"
    chromium.value("localStorage.clear()")
    chromium.complaints.clear()


def test_a_server_that_goes_away_is_told(chromium: Browser, tmp_path: Path) -> None:
    with served() as gone:
        chromium.open(gone.url + "/dashboard")
        chromium.wait_for("document.querySelector('#state')?.textContent === 'ready'")
    chromium.wait_for("document.querySelector('#state')?.dataset.state === 'lost'")
    assert chromium.value("document.querySelector('#state').textContent").startswith("no contact for")
    chromium.complaints.clear()
