"""A fake cluster, fake engines, the reconcile and the control loop together, in simulated time."""

from datetime import timedelta

from prometheus_client import CollectorRegistry

from pagefleet_engine.contract.arguments import parse
from pagefleet_engine.contract.control import RuntimeStart
from pagefleet_engine.contract.metrics import LATENCY_BUCKETS_S, Metric
from pagefleet_operator.alerts import AlertBook
from pagefleet_operator.control.autoscalers import Autoscalers
from pagefleet_operator.control.fleets import Fleets
from pagefleet_operator.control.loop import ControlLoop
from pagefleet_operator.fake_engines import FakeEngines
from pagefleet_operator.labels import RUNTIME_CONFIG
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.reconcile import Reconciler
from pagefleet_operator.resources import EVENT, LLM_SERVICE, POD
from pagefleet_operator.testing import KEY, FakeCluster, llm_service

NAMES = {
    "running": Metric.REQUESTS_RUNNING,
    "waiting": Metric.REQUESTS_WAITING,
    "swapped": Metric.REQUESTS_SWAPPED,
    "usage": Metric.KV_CACHE_USAGE,
    "swaps": Metric.SWAPS,
    "preemptions": Metric.PREEMPTIONS,
}


def metrics_text(*, cap, capacity, length, steps, structured=(), begun=(), **numbers):
    """A scrape. `structured` is (route, precision, outcome, count), `begun` (route, precision, count)."""
    zeros = dict.fromkeys([*NAMES.values(), Metric.RECOMPUTES, Metric.REQUEST_SUCCESS], 0)
    values = zeros | {NAMES[name]: value for name, value in numbers.items()}
    values |= {Metric.CAP: cap, Metric.CAPACITY: capacity, Metric.MAX_MODEL_LEN: length, Metric.STEPS: steps}
    lines = []
    for metric, value in values.items():
        kind = "counter" if metric.endswith("_total") else "gauge"
        lines += [f"# TYPE {metric} {kind}", f"{metric} {value}"]
    lines += ["# TYPE pagefleet:requests_refused_total counter", f'{Metric.REFUSED}{{reason="queue_full"}} 0']
    for metric, bounds in LATENCY_BUCKETS_S.items():
        lines.append(f"# TYPE {metric} histogram")
        lines += [f'{metric}_bucket{{le="{bound}"}} 0' for bound in (*bounds, "+Inf")]
    lines.append("# TYPE pagefleet:structured_outputs_total counter")
    for route, precision, outcome, number in structured:
        labels = f'route="{route}",precision="{precision}",constrained="false",outcome="{outcome}"'
        lines.append(f"pagefleet:structured_outputs_total{{{labels}}} {number}")
    lines.append("# TYPE pagefleet:route_requests_total counter")
    for route, precision, number in begun:
        lines.append(f'pagefleet:route_requests_total{{route="{route}",precision="{precision}"}} {number}')
    return "\n".join(lines) + "\n"


class World:
    """One service. A test says what its engines report; `pass_time` lets the operator live with it."""

    def __init__(self, cluster=None, engines=None):
        self.cluster = cluster or FakeCluster()
        self.engines = engines or FakeEngines()
        self.numbers = {"running": 0}
        self.structured = []
        self.begun = []
        self.steps = 0
        self.jumped_s = 0.0
        self.start_operator()

    def start_operator(self):
        """A new process: nothing in memory."""
        self.registry = CollectorRegistry()
        metrics = OperatorMetrics(self.registry)
        self.fleets = Fleets(public_keys=lambda: "key", monotonic=self.seconds)
        self.woken = set()
        self.reconciler = Reconciler(
            cluster=self.cluster,
            metrics=metrics,
            clock=lambda: self.cluster.now,
            identity="test",
            engines=self.engines,
            fleets=self.fleets,
        )
        self.alerts = AlertBook()
        self.loop = ControlLoop(
            fleets=self.fleets,
            engines=self.engines,
            autoscalers=Autoscalers(cluster=self.cluster),
            alerts=self.alerts,
            wake=self.woken.add,
            metrics=metrics,
            monotonic=self.seconds,
            clock=lambda: self.cluster.now,
            random=lambda: 0.5,
        )

    def seconds(self):
        """On the monotonic clock, which no jump of the other one moves."""
        return self.cluster.seconds() - self.jumped_s

    def jump(self, seconds):
        """Somebody sets the wall clock."""
        self.cluster.now += timedelta(seconds=seconds)
        self.jumped_s += seconds

    async def make(self, **spec):
        await self.cluster.create(LLM_SERVICE, llm_service(**spec))
        await self.settle()

    async def settle(self):
        """Let the fleet come to rest without a look at the engines."""
        for _ in range(20):
            await self.reconciler(KEY)
            self.run_kubelet()
            self.cluster.now += timedelta(seconds=1)
        self.cluster.take_writes()

    def run_kubelet(self):
        self.cluster.run_kubelet()
        for raw in self.pods():
            uid = raw["metadata"]["uid"]
            if uid not in self.engines.engines and raw["status"].get("phase") == "Running":
                start = RuntimeStart.model_validate_json(raw["metadata"]["annotations"][RUNTIME_CONFIG])
                given = parse(raw["spec"]["containers"][0]["args"])
                longest, cap = given.max_model_len or 4096, start.cap or given.initial_cap
                engine = self.engines.add(uid, cap=cap, max_model_len=longest, routes=start.routes)
                length = start.max_model_len or longest
                engine.config = engine.config.model_copy(update={"max_model_len": length})

    def pods(self):
        return [raw for address, raw in self.cluster.objects.items() if address.plural == POD.plural]

    async def look(self, seconds=5):
        """One look at the engines, which report `numbers`, and whatever the reconcile makes of it."""
        self.cluster.now += timedelta(seconds=seconds)
        self.steps += 10
        for raw in self.pods():
            engine = self.engines.engines.get(raw["metadata"]["uid"])
            if engine is not None:
                config = engine.config
                engine.metrics = metrics_text(
                    cap=config.cap,
                    capacity=engine.capacity,
                    length=config.max_model_len,
                    steps=self.steps,
                    structured=self.structured,
                    begun=self.begun,
                    **self.numbers,
                )
        await self.loop.look_at([KEY])
        while self.woken:
            self.woken.clear()
            await self.reconciler(KEY)
            self.run_kubelet()

    def restart_engine(self, cap=32, routes=None):
        """The only pod's engine begins anew with what it was made for; its process has no memory of changes."""
        [raw] = self.pods()
        self.engines.add(raw["metadata"]["uid"], cap=cap, routes=routes)
        raw["status"]["containerStatuses"][0]["restartCount"] += 1

    async def pass_time(self, seconds):
        for _ in range(int(seconds / 5)):
            await self.look()

    async def status(self):
        return (await self.cluster.get(LLM_SERVICE, *KEY))["status"]

    async def condition(self, kind):
        found = next(item for item in (await self.status())["conditions"] if item["type"] == kind)
        return found["status"], found["reason"], found["message"]

    async def reasons(self):
        """Remedy and reason of every decision, oldest first."""
        decisions = (await self.status()).get("decisions", [])
        return [(decision["remedy"], decision["reason"]) for decision in reversed(decisions)]

    def events(self):
        found = [raw for address, raw in self.cluster.objects.items() if address.plural == EVENT.plural]
        return [raw["reason"] for raw in found]
