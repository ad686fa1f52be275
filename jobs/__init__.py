"""Submits sweeps as Slurm job arrays, shows the state of their cells and reruns them.

The commands of `python -m jobs` call functions that scripts may call too:

    from jobs.run.status import status
    from jobs.submit.submission import Options
    from jobs.submit.submit import submit
    from jobs.sweep.plan import plan

    planned = plan("jobs/sweeps/quickstart.yaml", ["train_steps=5"])
    done = submit(planned, Options(cluster="local", wait=True))
    status(done.run).counts()
"""
