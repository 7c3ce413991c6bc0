"""A Django project with Rota in it, through its own front doors: manage.py, views, the admin."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from rota.io import migrate
from tests.faults.processes import until

pytest.importorskip("django")
SITE = Path(__file__).parent / "django_site"
STEPS = Path(migrate.__file__).parents[1] / "contrib" / "django" / "migrations"


def environment(dsn: str) -> dict[str, str]:
    parts = conninfo_to_dict(dsn)
    words = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    database = {word: parts.get(part) or "" for word, part in words.items()}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    return {**clean, "SHOP_DATABASE": json.dumps(database), "DJANGO_SETTINGS_MODULE": "shop.settings"}


def run(dsn: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, *args], cwd=SITE, env=environment(dsn), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_migrate_makes_rotas_schema_and_leaves_nothing_to_make(dsn: str, psql) -> None:
    run(dsn, "manage.py", "migrate", "-v", "0")
    applied = psql(dsn, "SELECT number FROM rota.migrations ORDER BY number").split()
    assert [int(number) for number in applied] == [step.number for step in migrate.migrations("rota")]
    assert "No changes" in run(dsn, "manage.py", "makemigrations", "--check", "--dry-run")
    run(dsn, "manage.py", "migrate", "-v", "0")


def test_migrate_finds_what_rota_has_made_itself(migrated_dsn: str, psql) -> None:
    before = psql(migrated_dsn, "SELECT number, applied_at FROM rota.migrations ORDER BY number")
    run(migrated_dsn, "manage.py", "migrate", "-v", "0")
    assert psql(migrated_dsn, "SELECT number, applied_at FROM rota.migrations ORDER BY number") == before


def test_the_sql_of_a_step_can_be_read(dsn: str) -> None:
    assert 'CREATE TABLE "rota".open_jobs' in run(dsn, "manage.py", "sqlmigrate", "rota", "0001")


def test_each_of_rotas_migrations_has_its_step() -> None:
    found = sorted(int(n) for path in STEPS.glob("0*.py") for n in re.findall(r"RotaStep\((\d+)\)", path.read_text()))
    assert found == [step.number for step in migrate.migrations("rota")]


def test_views_add_work_that_the_worker_does_and_the_admin_shows(dsn: str, psql, tmp_path: Path) -> None:
    run(dsn, "manage.py", "migrate", "-v", "0")
    told = json.loads(run(dsn, "visit.py", "upload"))
    assert (told["jobs"], told["videos"]) == (2, 2)
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "manage.py", "rota_worker"], cwd=SITE, env=environment(dsn), stdout=log, stderr=log
        )
    try:
        until(
            lambda: psql(dsn, "SELECT count(*) FROM rota.open_jobs").strip() == "0",
            what=(tmp_path / "log").read_text,
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0, (tmp_path / "log").read_text()
    assert psql(dsn, "SELECT thumbnail FROM shop_video WHERE path = 'a.mp4'").strip() == "a.jpg"
    seen = json.loads(run(dsn, "visit.py", "look"))
    assert "no frame" in seen["list"] and "no frame" in seen["detail"]
    assert seen["add"] == 403
    assert seen["after reader"] == "failed", "who may only read changed a job"
    assert seen["foreign post"] == 403, "a page of another site could retry a job (S94)"
    assert "1 of 1 jobs are back in the queue" in seen["told"] and seen["after operator"] == "queued"
    assert seen["after cancel"] == "cancelled"


def test_what_a_job_holds_is_text_in_the_admin(dsn: str, psql) -> None:
    """S93: names, payloads, errors and results come from anybody."""
    run(dsn, "manage.py", "migrate", "-v", "0")
    evil = "<img src=x onerror=alert(1)>'\"</script>{{7*7}}{% debug %}"
    quoted = evil.replace("'", "''")
    psql(
        dsn,
        "INSERT INTO rota.ended_jobs (id, run_after, created_at, finished_at, lease_epoch, priority, tries, state,"
        " place, kind, tenant, leased_by, last_error, payload, result, progress)"
        " SELECT gen_random_uuid(), now(), now(), now(), 1, 0, 1, 'failed', 'worker', evil, evil, evil, evil,"
        f" to_jsonb(evil), to_jsonb(evil), to_jsonb(evil) FROM (SELECT '{quoted}'::text AS evil) AS given",
    )
    seen = json.loads(run(dsn, "visit.py", "pages"))
    assert set(seen) == {"list", "detail", "search", "nothing found", "told"}
    for name, page in seen.items():
        assert "<img src=x" not in page and "</script>{{" not in page and "49{%" not in page, name
    for name in ("list", "detail", "search"):
        assert "&lt;img src=x onerror=alert(1)&gt;" in seen[name], name


def test_a_value_that_python_cannot_read_keeps_no_page_from_being_shown(dsn: str, psql) -> None:
    run(dsn, "manage.py", "migrate", "-v", "0")
    psql(
        dsn,
        "INSERT INTO rota.ended_jobs (id, run_after, created_at, finished_at, lease_epoch, priority, tries, state,"
        " place, kind, payload, progress) SELECT gen_random_uuid(), now(), now(), now(), 1, 0, 1, 'failed', 'worker',"
        " 'odd', ('{\"n\": ' || repeat('9', 6000) || '}')::jsonb, (repeat('[', 2000) || repeat(']', 2000))::jsonb",
    )
    seen = json.loads(run(dsn, "visit.py", "pages"))
    assert ">odd<" in seen["list"] and "9" * 6000 in seen["detail"] and "[" * 2000 in seen["detail"]
