"""The shop's background work."""

import rota
from rota.contrib.django import make_app
from shop.models import Video

app = make_app()


@app.job(max_tries=1)
def thumbnail(ctx: rota.Context, payload: dict) -> str:
    """Makes a thumbnail, or fails where there is nothing to see."""
    video = Video.objects.get(pk=payload["video"])
    if video.path == "broken.mp4":
        raise ValueError("no frame")
    video.thumbnail = video.path.replace(".mp4", ".jpg")
    video.save()
    return video.thumbnail
