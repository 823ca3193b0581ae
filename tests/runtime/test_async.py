"""Generation from asyncio: one batch for all streams, a loop that stays free, and rows that come back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.runtime.replays import QueuedReplays
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.frontend.make_tokenizers import train

GREEDY = ost.SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
LONG = ost.SamplingParams(max_tokens=None, temperature=0.0, ignore_eos=True)
PROMPTS = [[5], [7, 8, 9], list(range(20, 60)), [1, 2], [90, 3, 3, 3, 3]]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> ost.LLM:
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = train()
    config = small_config(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=4096)
    write_hf_checkpoint(folder, config, random_model(config, 5))
    tokenizer.save(str(folder / "tokenizer.json"))
    return ost.LLM(folder, max_num_seqs=2, context=4096, threads=1)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that another thread does."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never happened")


def idle(llm: ost.LLM) -> bool:
    return llm.executable.free_rows.held == 0 and llm._worker._thread is None


async def collect(stream: ost.AsyncTextStream) -> str:
    return "".join([piece async for piece in stream])


def test_streams_side_by_side_give_what_generate_gives(llm: ost.LLM) -> None:
    expected = llm.generate(PROMPTS, GREEDY)

    async def main() -> None:
        streams = [llm.astream(prompt, GREEDY) for prompt in PROMPTS]  # more than there are rows
        texts = await asyncio.gather(*map(collect, streams))
        for text, stream, output in zip(texts, streams, expected, strict=True):
            assert text == output.text == stream.output.text
            assert stream.output.token_ids == output.token_ids
            assert stream.output.finish_reason == "length"
        assert await llm.agenerate([7, 8, 9], GREEDY) == (await _finished(llm.astream([7, 8, 9], GREEDY)))
        await until(lambda: idle(llm))

    asyncio.run(main())


async def _finished(stream: ost.AsyncTextStream) -> ost.RequestOutput:
    await collect(stream)
    return stream.output


def test_streams_share_their_steps(llm: ost.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[str] = []
    held = llm.executable.run_held

    def counted(entry: str, *rest: object) -> object:
        entries.append(entry)
        return held(entry, *rest)  # type: ignore[arg-type]

    submit = QueuedReplays.submit

    def counted_replay(replays: QueuedReplays) -> None:
        entries.append("decode")
        submit(replays)

    monkeypatch.setattr(llm.executable, "run_held", counted)
    monkeypatch.setattr(QueuedReplays, "submit", counted_replay)

    async def main() -> None:
        with llm.executable.generating():  # both are waiting when the first step begins
            tasks = [asyncio.create_task(llm.agenerate(prompt, GREEDY)) for prompt in ([1, 2], [3, 4])]
            await asyncio.sleep(0.05)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert 19 <= sum(entry.startswith("decode") for entry in entries) < 2 * 19


def test_the_loop_runs_other_tasks_meanwhile(llm: ost.LLM) -> None:
    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticker = asyncio.create_task(tick())
        async with llm.astream([1, 2, 3], LONG) as stream:
            async for _ in stream:
                if ticks > 10:
                    break
            else:
                raise AssertionError("the loop was blocked until the text was complete")
        ticker.cancel()
        await until(lambda: idle(llm))

    asyncio.run(main())


@pytest.mark.parametrize("how", ["cancel", "close", "drop", "timeout"])
def test_a_stream_that_is_given_up_frees_its_row(llm: ost.LLM, how: str) -> None:
    async def main() -> None:
        streams = [llm.astream([1, 2, 3], LONG), llm.astream([4, 5], LONG)]
        for stream in streams:
            await anext(stream)
        assert llm.executable.free_rows.held == 2
        if how == "cancel":
            tasks = [asyncio.create_task(collect(stream)) for stream in streams]
            await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        elif how == "close":
            for stream in streams:
                await stream.aclose()
        elif how == "timeout":
            for stream in streams:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(collect(stream), 0.02)
        else:
            del stream
            streams.clear()
            gc.collect()
        await until(lambda: idle(llm))
        assert (await llm.agenerate([7, 8, 9], GREEDY)).finish_reason == "length"

    asyncio.run(main())


def test_a_closed_loop_is_no_reason_to_go_on(llm: ost.LLM) -> None:
    kept = []

    async def main() -> None:
        stream = llm.astream([1, 2, 3], LONG)
        kept.append(stream)
        await anext(stream)

    asyncio.run(main())
    for _ in range(2000):
        if idle(llm):
            break
        time.sleep(0.005)
    assert idle(llm)


def test_a_bad_prompt_is_an_error_at_once(llm: ost.LLM) -> None:
    async def main() -> None:
        with pytest.raises(ost.ConfigError, match="at least one token"):
            llm.astream([], GREEDY)
        with pytest.raises(ost.CapacityError):
            await llm.agenerate([1], ost.SamplingParams(max_tokens=10_000))

    asyncio.run(main())


def test_rows_that_a_suspended_iterator_holds_are_an_error(llm: ost.LLM) -> None:
    async def main() -> None:
        held = [llm.tokens([[1]], LONG) for _ in range(2)]
        for events in held:
            next(events)
        with pytest.raises(ost.LifecycleError, match="all 2 rows are held"):
            await llm.agenerate([1, 2], GREEDY)
        for events in held:
            events.close()
        assert len((await llm.agenerate([1, 2], GREEDY)).token_ids) == 20

    asyncio.run(main())


def test_the_thread_waits_for_a_synchronous_call(llm: ost.LLM) -> None:
    async def main() -> None:
        with llm.executable.generating():
            stream = llm.astream([1, 2], GREEDY)
            waiting = asyncio.create_task(collect(stream))
            await asyncio.sleep(0.05)
            assert stream.output.token_ids == ()
        await waiting
        assert len(stream.output.token_ids) == 20

    asyncio.run(main())


def test_two_loops_in_two_threads_share_one_model(llm: ost.LLM) -> None:
    expected = [llm.generate([prompt], GREEDY)[0].token_ids for prompt in PROMPTS]
    found: dict[int, tuple[int, ...]] = {}

    def work(which: int) -> None:
        found[which] = asyncio.run(llm.agenerate(PROMPTS[which], GREEDY)).token_ids

    threads = [threading.Thread(target=work, args=(which,)) for which in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[which] for which in range(len(PROMPTS))] == expected


def test_outside_an_event_loop_a_stream_is_refused(llm: ost.LLM) -> None:
    with pytest.raises(ost.LifecycleError, match="belongs to a running event loop"):
        llm.astream([5], GREEDY)


@pytest.mark.parametrize("closed", [False, True], ids=["to its end", "closed"])
def test_every_task_that_waits_for_a_stream_hears_of_its_end(llm: ost.LLM, closed: bool) -> None:
    async def main() -> None:
        stream = llm.astream([5], LONG if closed else GREEDY)
        tasks = [asyncio.create_task(collect(stream)) for _ in range(3)]
        if closed:
            await until(lambda: len(stream.output.token_ids) > 2)
            await stream.aclose()
        texts = await asyncio.wait_for(asyncio.gather(*tasks), timeout=30)
        assert closed or sorted("".join(texts)) == sorted(stream.output.text), "each piece once, in one of the tasks"

    asyncio.run(main())


def test_a_chat_is_a_stream_too(tmp_path: Path) -> None:
    tokenizer = train()
    config = small_config(vocab_size=tokenizer.get_vocab_size())
    write_hf_checkpoint(tmp_path, config, random_model(config, 5))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    chatty = ost.LLM(tmp_path, max_num_seqs=1, context=128, threads=1)
    messages = [{"role": "user", "content": "hello"}]
    (expected,) = chatty.chat(messages, GREEDY)
    assert [output.token_ids for output in chatty.chat([messages, messages], GREEDY)] == [expected.token_ids] * 2
    assert chatty.chat((message for message in messages), GREEDY)[0].token_ids == expected.token_ids  # type: ignore[arg-type]
    for wrong in (None, 5, messages[0], [None]):
        with pytest.raises(ost.ConfigError, match="messages are a"):
            chatty.chat(wrong)  # type: ignore[arg-type]
    assert "".join(chatty.chat_stream(messages, GREEDY)) == expected.text
    assert expected.prompt_token_ids == tuple(chatty.tokenize("user: hello\nassistant:", add_special_tokens=False))

    async def main() -> str:
        return await collect(chatty.achat_stream(messages, GREEDY))

    assert asyncio.run(main()) == expected.text == chatty.detokenize(expected.token_ids)
