"""`rota jobs retry`: puts ended jobs back into the queue, one by one or all failed ones of a kind."""

from collections.abc import Sequence

import msgspec
import typer

from rota.errors import SettingsError
from rota.ids import JobId
from rota.io import terminal
from rota.queue.io.store import Store
from rota.queue.job import Retried

PAGE = 1000
"""Jobs in one statement."""


async def retry_each(store: Store, ids: Sequence[JobId], *, as_json: bool) -> None:
    """Retries these jobs and says of each what became of it.

    Raises: typer.Exit with 1 if one stays as it is.
    """
    answers = [await store.retry(job_id) for job_id in ids]
    if as_json:
        terminal.print_json([msgspec.structs.asdict(answer) for answer in answers])
    else:
        for answer in answers:
            terminal.out.print(terminal.plain(f"{answer.id} {_words(answer)}"), soft_wrap=True)
    if any(answer.outcome != "queued" for answer in answers):
        raise typer.Exit(1)


async def retry_many(
    store: Store, *, kinds: Sequence[str] | None, since_s: float | None, yes: bool, as_json: bool
) -> None:
    """Retries all failed jobs like that, after their number was shown and a person has agreed.

    Raises: SettingsError if nobody is there to agree; typer.Exit with 1 if one stays as it is, or none was wanted.
    """
    counts = await store.failed_count(kinds=kinds, since_s=since_s)
    total = sum(counts.values())
    if not as_json:
        for kind, count in counts.items():
            terminal.out.print(terminal.plain(f"{kind}: {count:,} failed"), soft_wrap=True)
    if total and not yes:
        unasked = SettingsError(f"{total:,} failed jobs would run again: add --yes to retry them.")
        if as_json:
            raise unasked
        try:
            agreed = typer.confirm(f"Retry {total:,} jobs?")
        except typer.Abort:
            # Nobody is there to answer.
            raise unasked from None
        if not agreed:
            raise typer.Exit(1)
    queued, held = await _retry_pages(store, kinds, since_s)
    if as_json:
        terminal.print_json({"failed": counts, "queued": queued, "held": [msgspec.structs.asdict(one) for one in held]})
    elif not total:
        terminal.out.print("No failed jobs like that.")
    else:
        terminal.out.print(f"{queued:,} queued")
        for answer in held:
            terminal.out.print(terminal.plain(f"{answer.id} {_words(answer)}"), soft_wrap=True)
    if held:
        raise typer.Exit(1)


async def _retry_pages(store: Store, kinds: Sequence[str] | None, since_s: float | None) -> tuple[int, list[Retried]]:
    """How many are queued now, and those that stay because another job holds their key."""
    queued, held, above = 0, [], None
    while page := await store.failed(kinds=kinds, since_s=since_s, above=above, limit=PAGE):
        queued += len(await store.retry_many(job.id for job in page if not job.keyed))
        for job in page:
            if job.keyed:
                answer = await store.retry(job.id)
                if answer.outcome == "queued":
                    queued += 1
                elif answer.outcome == "held":
                    held.append(answer)
        above = page[-1].id
    return queued, held


def _words(answer: Retried) -> str:
    return {
        "queued": "is queued",
        "leased": "runs now; it was left alone",
        "done": "is done; enqueue a new job to do it again",
        "held": f"was left as it is: job {answer.holder} holds its key",
    }[answer.outcome]
