"""Starts the processes of one model in parts (cokv serve --pipeline N --tensor M)."""
import os
import signal
import subprocess
import time

from lib_servers import Server, free_ports, metric, with_device

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # containers have no other user


def urls(link, folder, count):
    if link == "shm":
        return [f"shm://{folder}/rank-{n}" for n in range(count)]
    return [f"{link}://127.0.0.1:{port}" for port in free_ports(count)]


class Parts:
    """The processes of one model; `link`: mpi, or what their URLs begin with."""

    def __init__(self, binary, folder, n, m, link, *arguments, spares=0, log=subprocess.DEVNULL):
        self.command = (binary, "serve", *map(str, (*arguments, "--pipeline", n, "--tensor", m)))
        self.log, self.others, self.urls, self.workers = log, [], [], n * m
        if link == "mpi":
            os.environ.update(AS_ROOT)
            self.leader = Server(self.command[0], *self.command[1:], log=log,
                                 prefix=("mpirun", "--oversubscribe", "-n", str(n * m)))
        else:
            self.urls = urls(link, folder, n * m + spares)
            self.others = [self.begin(i) for i in range(1, n * m + spares)]
            self.leader = Server(self.command[0], *self.command[1:], *self.where(0), log=log)
        self.port = self.leader.port
        self.all_here()

    def where(self, number):
        spares = self.urls[self.workers:]
        return ("--rank", str(number), "--ranks", ",".join(self.urls[:self.workers]),
                *(("--spares", ",".join(spares)) if spares else ()))

    def begin(self, number):
        return subprocess.Popen([self.command[0], *with_device((*self.command[1:], *self.where(number)))], stdout=subprocess.DEVNULL, stderr=self.log)

    def all_here(self):
        end = time.monotonic() + 120
        while metric(self.port, "cokv_workers_joined") != 1:
            if time.monotonic() > end:
                raise AssertionError("the workers did not come together")
            for n, p in enumerate(self.others, 1):
                if p.poll() is not None:
                    raise AssertionError(f"worker {n} has ended: {p.returncode}")
            time.sleep(0.01)

    def kill(self, number):
        self.others[number - 1].kill()
        self.others[number - 1].wait()

    def replace(self, number):
        self.others[number - 1] = self.begin(number)

    def stop(self):
        """The leader first, as an operator would; returns all exit codes."""
        codes = [self.leader.stop()]
        for p in self.others:
            p.send_signal(signal.SIGTERM)
        return codes + [p.wait(timeout=60) for p in self.others]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.others:
            p.kill()
            p.wait()
        if self.leader.process.args[0] == "mpirun" and self.leader.process.poll() is None:
            self.leader.process.send_signal(signal.SIGTERM)  # killed, it would leave its ranks
            self.leader.process.wait(timeout=60)
        self.leader.__exit__()
