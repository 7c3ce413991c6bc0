"""The admin, and one view that adds work in the transaction of its own change."""

from django.contrib import admin
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from shop.jobs import app, thumbnail
from shop.models import Video


def upload(request: HttpRequest) -> HttpResponse:
    """Adds a video and its job, both or neither."""
    with transaction.atomic():
        video = Video.objects.create(path=request.GET["path"])
        job = app.sync.enqueue(thumbnail, {"video": video.pk}, conn=connection)
        if request.GET.get("fail"):
            transaction.set_rollback(True)
    return JsonResponse({"video": video.pk, "job": str(job.id)})


urlpatterns = [path("admin/", admin.site.urls), path("upload/", upload)]
