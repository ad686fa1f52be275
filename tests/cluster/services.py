"""What a Slurm needs before its own daemons: munge, and accounting in a database."""

from __future__ import annotations

import secrets

from tests.cluster import config
from tests.cluster.config import Settings
from tests.cluster.daemons import accepts, run, start_daemon, wait


def start_munge(settings: Settings) -> None:
    root = settings.root
    key = root / "munge.key"
    run(root, "mungekey", "-c", "-k", str(key))
    start_daemon(
        root,
        "munged",
        "munged",
        "--foreground",
        "--force",
        f"--socket={settings.munge_socket}",
        f"--key-file={key}",
        f"--pid-file={root}/munged.pid",
        f"--log-file={root}/log/munged.own.log",
        f"--seed-file={root}/munged.seed",
    )


def start_accounting(settings: Settings) -> None:
    """MariaDB, slurmdbd and the cluster's name in it; slurmctld does not start without."""
    root = settings.root
    password = secrets.token_hex(16)
    data = f"--datadir={root}/mariadb"
    run(
        root,
        "mariadb-install-db",
        "--no-defaults",
        data,
        "--skip-test-db",
        "--auth-root-authentication-method=normal",
        *config.DATABASE_OPTIONS,
    )
    setup = root / "database.sql"
    setup.touch(0o600)
    setup.write_text(config.database_setup(password))
    conf = root / "slurmdbd.conf"
    conf.touch(0o600)
    conf.write_text(config.slurmdbd_conf(settings, password))
    start_daemon(
        root,
        "mariadbd",
        "mariadbd",
        "--no-defaults",
        data,
        f"--socket={settings.database_socket}",
        f"--init-file={setup}",
        f"--pid-file={root}/mariadb.pid",
        *config.DATABASE_OPTIONS,
    )
    wait(root, "munged", lambda: accepts(settings.munge_socket), 30)
    wait(root, "mariadbd", lambda: accepts(settings.database_socket), 60)
    # libmariadb reads this for the socket of "localhost".
    database = {"MYSQL_UNIX_PORT": str(settings.database_socket)}
    start_daemon(root, "slurmdbd", "slurmdbd", "-D", env=database)
    wait(root, "slurmdbd", lambda: accepts(("127.0.0.1", settings.dbd_port)), 60)
    for command in (
        ("add", "cluster", config.CLUSTER_NAME),
        ("add", "qos", "few", f"MaxSubmitJobsPerUser={config.FEW_JOBS}"),
        ("modify", "user", "root", "set", "qos=normal,few", "defaultqos=normal"),
    ):
        run(root, "sacctmgr", "-i", *command)
