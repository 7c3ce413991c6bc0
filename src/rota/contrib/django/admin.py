"""The jobs in Django's admin: a list to read, with retry and cancel for who may operate."""

from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest

from rota.contrib.django import conf
from rota.contrib.django.models import Job
from rota.io.postgres import statement
from rota.queue.io import callers


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    """Reads. Only the two actions write, through Rota's own statements."""

    list_display = ("id", "kind", "tenant", "state", "priority", "tries", "run_after", "finished_at", "last_error")
    list_filter = ("state",)
    search_fields = ("id__exact", "kind__exact", "tenant__exact")
    search_help_text = "A whole id, a kind or a tenant"
    ordering = ("-id",)
    list_per_page = 50
    show_full_result_count = False
    actions = ("retry", "cancel")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds jobs by hand: only the program knows what it needs."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody edits one."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody deletes one: retention does."""
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Who may retry and cancel."""
        return bool(request.user.has_perm("rota.operate_job"))

    @admin.action(description="Retry: back into the queue, with all tries", permissions=["operate"])
    def retry(self, request: HttpRequest, queryset: Any) -> None:
        """Puts ended jobs back, and says how many."""
        outcomes = [row["outcome"] for job in queryset for row in _run("retry.sql", job.pk, None)]
        back = outcomes.count("queued")
        self.message_user(request, f"{back} of {len(queryset)} jobs are back in the queue.")
        if "held" in outcomes:
            self.message_user(request, "Some stay: another job has their dedupe key.", messages.WARNING)

    @admin.action(description="Cancel", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: Any) -> None:
        """Cancels open jobs; a running one is asked to stop."""
        ids = sorted(str(job.pk) for job in queryset)
        states = [row["state"] for row in _run("cancel.sql", ids, f"Cancelled by {request.user} in the admin", None)]
        self.message_user(
            request,
            f"{states.count('cancelled')} jobs are cancelled, {states.count('leased')} were asked to stop.",
        )


def _run(name: str, *args: Any) -> list[Any]:
    schema = conf.schema()
    return callers.fetch_on_sync(conf.connection(), statement("rota.queue.io.sql", name, schema), args, schema=schema)
