"""Plays a visitor and an admin of the site; prints what came of it as one JSON object. Run by `test_django.py`."""

import json
import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()

from django.contrib.auth.models import Permission, User
from django.test import Client
from shop.models import Video

from rota.contrib.django.models import Job


def upload() -> dict[str, object]:
    """Three videos: one that can be made, one that cannot, and one whose transaction is taken back."""
    client = Client()
    good = client.get("/upload/", {"path": "a.mp4"}).json()
    bad = client.get("/upload/", {"path": "broken.mp4"}).json()
    lost = client.get("/upload/", {"path": "c.mp4", "fail": "1"}).json()
    return {"good": good, "bad": bad, "lost": lost, "jobs": Job.objects.count(), "videos": Video.objects.count()}


def look() -> dict[str, object]:
    """What the admin shows, and what its actions do, for somebody who may operate and somebody who may only read."""
    failed = Job.objects.get(state="failed")
    reader = User.objects.create_user("reader", password="x", is_staff=True)
    reader.user_permissions.add(Permission.objects.get(codename="view_job"))
    operator = User.objects.create_user("operator", password="x", is_staff=True)
    operator.user_permissions.add(*Permission.objects.filter(codename__in=["view_job", "operate_job"]))
    retry = {"action": "retry", "_selected_action": [str(failed.pk)]}
    found: dict[str, object] = {}
    client = Client()
    client.force_login(reader)
    found["list"] = client.get("/admin/rota/job/").content.decode()
    found["detail"] = client.get(f"/admin/rota/job/{failed.pk}/change/").content.decode()
    found["add"] = client.get("/admin/rota/job/add/").status_code
    client.post("/admin/rota/job/", retry)
    found["after reader"] = Job.objects.get(pk=failed.pk).state
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(operator)
    found["foreign post"] = strict.post("/admin/rota/job/", retry).status_code
    client.force_login(operator)
    found["told"] = client.post("/admin/rota/job/", retry, follow=True).content.decode()
    found["after operator"] = Job.objects.get(pk=failed.pk).state
    client.post("/admin/rota/job/", {"action": "cancel", "_selected_action": [str(failed.pk)]})
    found["after cancel"] = Job.objects.get(pk=failed.pk).state
    return found


def pages() -> dict[str, object]:
    """All that the admin shows of the one job, which may hold anything."""
    job = Job.objects.get()
    operator = User.objects.create_user("operator", password="x", is_staff=True)
    operator.user_permissions.add(*Permission.objects.filter(codename__in=["view_job", "operate_job"]))
    client = Client()
    client.force_login(operator)
    found = {
        "list": client.get("/admin/rota/job/"),
        "detail": client.get(f"/admin/rota/job/{job.pk}/change/"),
        "search": client.get("/admin/rota/job/", {"q": job.kind}),
        "nothing found": client.get("/admin/rota/job/", {"q": f"{job.kind}?"}),
        "told": client.post("/admin/rota/job/", {"action": "cancel", "_selected_action": [str(job.pk)]}, follow=True),
    }
    return {name: page.content.decode() for name, page in found.items()}


print(json.dumps({"upload": upload, "look": look, "pages": pages}[sys.argv[1]]()))
