"""The cost model: rooflines against arithmetic and published figures, fits against times that are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.core.plan import StepShape
from octavo.plan.cost import COMMON, CostKey, CostModel, Launch, Recorded, Roofline, StepTimes, Swing, Terms, cost_model, load, save
from octavo.plan.devices import Device
from octavo.plan.fit import fit, judge
from octavo.plan.timing import Timing
from tests.plan.checkpoints import GEMMA3_1B, LLAMA3_8B, QWEN3_06B

H200 = Device.named("h200")


def parts(config: dict[str, Any], device: Device = H200):
    arch = Architecture.from_config(config)
    return arch, resolve(EngineConfig.from_flags(), config, device), device


def roofline(config: dict[str, Any] = LLAMA3_8B) -> Roofline:
    return Roofline.of(*parts(config))


def costs(config: dict[str, Any] = LLAMA3_8B) -> CostModel:
    return CostModel.of(*parts(config))


def decode(count: int, context: int) -> StepShape:
    return StepShape(count, count, count, 0, 0, count * context)


def prefill(count: int, sequences: int = 1) -> StepShape:
    return StepShape(count * sequences, sequences, sequences, count * sequences, sequences * count * (count + 1) // 2, 0)


def test_one_sequence_reads_all_weights_but_the_embedding():
    terms = roofline().terms(decode(1, 1000))
    assert terms.weights == pytest.approx((8_030_261_248 - 128_256 * 4096) * 2 / 4.8e12)
    assert terms.kv == pytest.approx(1000 * 131_072 / 4.8e12)
    assert terms.attention == terms.collectives == 0
    assert terms.products < 0.05 * terms.weights


def test_a_long_prompt_is_bound_by_products_and_attention_grows_with_its_square():
    short, long = (roofline().terms(prefill(count)) for count in (2048, 8192))
    layers = 8_030_261_248 - 2 * 128_256 * 4096
    assert long.products + long.weights == pytest.approx(8192 * 2 * layers / 989e12, rel=0.05)
    assert long.attention / short.attention == pytest.approx(16, rel=0.01)
    assert long.attention == pytest.approx(32 * 4 * 4096 * 8192 * 8193 / 2 / 989e12)


def test_a_window_bounds_what_is_read():
    arch, settings, device = parts(GEMMA3_1B)
    model = Roofline.of(arch, settings, device)
    inside, outside = model.terms(decode(4, 500)).kv, model.terms(decode(4, 5000)).kv
    per_layer = 2 * 1 * 256 * 2 / 4.8e12
    assert inside == pytest.approx(4 * 500 * 26 * per_layer)
    assert outside == pytest.approx(4 * (5000 * 4 + 512 * 22) * per_layer)


def test_ranks_that_share_layers_divide_the_work_and_pay_for_talking():
    arch, settings, device = parts(LLAMA3_8B)
    one = Roofline.of(arch, settings, device).terms(decode(64, 500))
    two = Roofline.of(arch, replace(settings, tensor_parallel_size=2), device).terms(decode(64, 500))
    assert two.weights == pytest.approx(one.weights / 2, rel=1e-3)
    assert two.kv == pytest.approx(one.kv / 2)
    assert two.collectives > one.collectives == 0


@pytest.mark.parametrize(
    ("config", "shape", "peer_ms"),  # vLLM 0.23 on an H200; a rough model is to be nearer than a factor of 1.6
    [(LLAMA3_8B, decode(1, 160), 5.09), (LLAMA3_8B, decode(64, 256), 6.78), (LLAMA3_8B, decode(256, 256), 13.67),
     (LLAMA3_8B, prefill(4096, 2), 176.6), (QWEN3_06B, decode(256, 850), 10.6)],
)  # fmt: skip
def test_common_coefficients_are_near_what_an_engine_reaches(config: dict[str, Any], shape: StepShape, peer_ms: float):
    assert peer_ms / 1.6 < 1000 * costs(config).device_s(shape) < 1.6 * peer_ms


def timings(truth: Terms, noise: float, count: int = 400) -> list[Timing]:
    source, model = Random(7), replace(costs(), coefficients=truth)
    found: list[Timing] = []
    for _ in range(count):
        decodes, chunk = source.randint(0, 200), source.choice([0, 0, 0, 200, 2000, 8000])
        if decodes or chunk:
            pairs = chunk * (chunk + 1) // 2
            shape = StepShape(decodes + chunk, decodes + (chunk > 0), decodes, chunk, pairs, decodes * source.randint(50, 4000))
            found.append(Timing.exact(shape, model.device_s(shape) * source.uniform(1 - noise, 1 + noise)))
    return found


TRUTH = Terms(2.0, 1.4, 1.7, few=0.5, attention=3.0, kv=1.1, activations=0.4, sequences=4.0, collectives=1.0, eager=1.0)


def test_a_fit_finds_the_times_that_made_the_data():
    seen = timings(TRUTH, noise=0.05)
    model = fit(costs(), seen)
    errors = judge(fit(costs(), seen[::2]), seen[1::2])
    assert errors["median"] < 0.04
    assert abs(errors["bias"]) < 0.02
    assert errors["steps"] > 100
    truth = replace(costs(), coefficients=TRUTH)
    for shape in (decode(1, 500), decode(128, 900), prefill(4096)):
        assert model.device_s(shape) == pytest.approx(truth.device_s(shape), rel=0.05)
    assert judge(costs(), timings(TRUTH, noise=0.05))["median"] > 0.1


@pytest.mark.parametrize("share", [2.0, 3.0])
def test_a_worker_s_time_to_launch_a_step_is_found(share: float):
    """It shows only where it is longer than what it launches, so least squares alone would spread it over all terms."""
    arch, settings, device = parts(LLAMA3_8B)
    apart = CostModel.of(arch, replace(settings, executor_backend="mp", pass_sizes=()), device)
    true = replace(apart, roofline=replace(apart.roofline, eager_s=apart.roofline.eager_s * share), coefficients=TRUTH)
    source, seen = Random(3), []
    for _ in range(300):
        chunk, decodes = source.choice([0, 16, 100, 400, 3000]), source.randint(1, 60)
        shape = StepShape(chunk + decodes, decodes + 1, decodes + 1, chunk, chunk * (chunk + 1) // 2, decodes * 500)
        seen.append(Timing.exact(shape, true.device_s(shape)))
    found = fit(apart, seen)
    assert found.roofline.eager_s == true.roofline.eager_s
    assert judge(found, seen)["p90"] < 0.06


def test_bounds_count_only_where_they_are_missed():
    """A few steps are known, the others only to have been hidden behind the host's launch of another step."""
    exact, others = timings(TRUTH, noise=0.02)[:60], timings(TRUTH, noise=0.0)[60:]
    hidden = [one._replace(seconds=3 * one.seconds, least_s=0.0) for one in others]
    found = fit(costs(), exact + hidden)
    assert judge(found, others)["median"] < 0.04
    tight = [one._replace(seconds=1.02 * one.seconds, least_s=0.98 * one.seconds) for one in others]
    assert judge(fit(costs(), tight), others)["median"] < 0.04, "bounds that are close say as much as a time"


def test_the_host_s_times_are_found_beside_the_device_s():
    arch, settings, device = parts(LLAMA3_8B)
    guess = CostModel.of(arch, replace(settings, pass_sizes=()), device)  # so that mixed steps are launched, of whatever size
    true = replace(guess, launch=Launch(3e-4, 2e-3, 2e-2, 4e-6, 1e-7))
    seen = [one._replace(launch_s=true.launch_s(one.shape)) for one in timings(TRUTH, noise=0.02)]
    found = fit(guess, seen)
    for shape in (decode(8, 500), decode(200, 500), prefill(500)):
        assert found.launch_s(shape) == pytest.approx(true.launch_s(shape), rel=0.05)
        assert found.seconds(shape) == max(found.times(shape))
    assert judge(found, seen)["launch_median"] < 0.02


def test_small_steps_of_any_kind_are_graphs_where_their_passes_are_recorded():
    arch, settings, device = parts(LLAMA3_8B)
    assert max(settings.pass_sizes) == 1408
    for mode, small, decodes in (("FULL", True, True), ("PIECEWISE", True, False), ("FULL_DECODE_ONLY", False, True)):
        known = EngineConfig.from_flags(cudagraph_mode=mode)
        found = Roofline.of(arch, resolve(known, LLAMA3_8B, device), device)
        assert [found.recorded(shape)[0] is not Recorded.NOTHING for shape in (prefill(500), prefill(2000))] == [small, False], mode
        assert (len(found.decode_sizes) > 0) == decodes, mode


def test_a_recorded_step_takes_as_long_as_what_it_is_padded_to():
    arch, settings, device = parts(LLAMA3_8B)
    found = Roofline.of(arch, settings, device)
    lower, upper = settings.pass_sizes[-2:]
    assert found.terms(prefill(lower + 1)).products == pytest.approx(found.terms(prefill(upper)).products)
    assert found.terms(prefill(lower)).products < 0.95 * found.terms(prefill(lower + 1)).products
    assert found.terms(prefill(upper + 1)).products < found.terms(prefill(upper + 100)).products, "what is launched is not padded"
    lower, upper = found.decode_sizes[-2:]
    assert found.terms(decode(lower + 1, 9)).activations == found.terms(decode(upper, 9)).activations


def test_a_host_that_is_the_device_launches_for_as_long_as_a_step_takes():
    arch, settings, device = parts(LLAMA3_8B)
    host = CostModel.of(arch, replace(settings, device="cpu"), device)
    seconds = host.device_s(decode(4, 100))
    assert host.times(decode(4, 100)) == StepTimes(seconds, seconds)
    late = [one._replace(least_s=0.0, seconds=2 * one.seconds, launch_s=one.seconds) for one in timings(TRUTH, noise=0.02)]
    assert judge(fit(host, late), late)["median"] < 0.03, "nobody waits for its results, so there are no bounds"


@pytest.mark.parametrize("knee", [1.2, 3.0])
def test_how_far_reading_weights_hides_products_is_found(knee: float):
    guess = costs()
    true = replace(guess, roofline=replace(guess.roofline, knee=knee), coefficients=TRUTH)
    shapes = [prefill(size) for size in range(50, 4000, 50)] + [decode(size, 300) for size in range(1, 256)]
    found = fit(guess, [Timing.exact(shape, true.device_s(shape)) for shape in shapes])
    assert (found.roofline.knee < 2) == (knee < 2)
    assert judge(found, [Timing.exact(shape, true.device_s(shape)) for shape in shapes])["weighted"] < 0.02


def test_stray_steps_do_not_move_it():
    clean = timings(TRUTH, noise=0.03)
    strays = [Timing.exact(timing.shape, timing.seconds * 40) for timing in clean[::12]]
    errors = judge(fit(costs(), clean + strays), clean)
    assert errors["median"] < 0.04


def test_what_the_data_do_not_show_stays_common_and_nothing_is_negative():
    model = fit(costs(), [Timing.exact(decode(1, 100 * k), 0.0001) for k in range(1, 50)])
    assert min(model.coefficients) >= 0
    assert model.coefficients.attention == pytest.approx(COMMON.attention)
    assert model.coefficients.collectives == pytest.approx(COMMON.collectives)


def test_nothing_to_fit_to_is_an_error():
    with pytest.raises(ValueError, match="no timing"):
        fit(costs(), [Timing.exact(decode(1, 1), 0.0)])


def test_a_model_is_found_again_by_its_key_only(tmp_path: Path):
    arch, settings, device = parts(GEMMA3_1B)
    key = CostKey.of(arch, settings, device)
    extra_s, swings = {(Recorded.WHOLE, 8): 1e-4, (Recorded.PASS, 128): -2e-4}, {Recorded.PASS: Swing((0.9, 1.1), (0.95, 1.0, 1.2), 0.1)}
    model = CostModel(Roofline.of(arch, settings, device), Launch(1e-3, 2e-3, 2e-2, 1e-6, 1e-7), TRUTH, "a test", extra_s, swings)
    save(tmp_path / key.file_name, key, model, {"median": 0.01})
    assert load(tmp_path / key.file_name, key) == model
    assert cost_model(arch, settings, device, (tmp_path / "none", tmp_path)) == model
    other = replace(settings, optimization_level=0)
    assert cost_model(arch, other, device, (tmp_path,)) == CostModel.of(arch, other, device)
    with pytest.raises(ValueError, match="not of"):
        load(tmp_path / key.file_name, CostKey.of(arch, other, device))
    (tmp_path / key.file_name).write_text("{}")
    with pytest.raises(ValueError, match="holds no costs"):
        load(tmp_path / key.file_name, key)
    assert cost_model(arch, settings, device, (tmp_path,)) == CostModel.of(arch, settings, device), "what is no longer read is not used"
