"""vLLM's scheduler (V1) as in the recordings: an independent implementation to which the simulator is compared.

It is written as plainly as the rules: block lists, one free list, hashes chained over every token, linear scans. It
shares no code with the simulator; `steps` returns the lines of a recording's `steps.jsonl`.
"""

from __future__ import annotations

from typing import Protocol

from tests.engine.reference_parts import DEFAULTS, Entry, Line, Pool, Request, Texts


class Drafts(Protocol):
    """Random outcomes of drafts, which are not part of the rules."""

    def accepted(self, step: int, name: str, drafts: int, padded: bool) -> int:
        """Return the number of accepted drafts of a step."""

    def proposed(self, step: int, name: str, prefilling: bool) -> int | None:
        """Return the number of drafts proposed after a step; None if it is unknown."""


class Scheduler:
    """The scheduler: the work of each step, and the changes by its results."""

    def __init__(self, config: Line, trace: list[Line], drafts: Drafts) -> None:
        c = self.config = DEFAULTS | config
        self.chance = drafts
        spec = c["spec"] or {"method": None, "k": 0}
        self.k, method = spec["k"], spec["method"]
        self.lookahead = self.k if method in ("eagle", "draft_model") else 0  # slots for the drafts of the next step
        self.extra = 1 if method == "draft_model" else 0  # what each request costs the budget beyond its tokens
        self.asynchronous, self.limit, self.eagle = c["async_scheduling"], c["max_model_len"], method == "eagle"
        self.most = c["max_num_seqs"] if c["max_num_active_seqs"] is None else c["max_num_active_seqs"]
        self.watermark = int(c["watermark"] * c["num_gpu_blocks"])
        self.pool, self.texts = Pool(c["num_gpu_blocks"]), Texts(trace, c["block_size"], self.eagle)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.steps = 0
        self.calls = 0  # of `schedule`, those that come to nothing among them
        self.last_prefill: int | None = None  # the latest call with prompt tokens
        self.left_waiting = False  # after the latest call that was free to admit

    def schedule(self, now: int) -> tuple[Line, list[Entry]] | None:
        """Return a step: running requests first, then, unless one was preempted, waiting ones; None without work."""
        self.calls += 1
        self.budget = self.config["max_num_batched_tokens"]
        self.threshold, self.held = self._threshold(), self._prefills_held()
        self.entries: dict[Request, Entry] = {}
        self.chunks: list[Request] = []  # running requests served whose prompt was not through
        self.has_prefill = False
        self.line: Line = {"new": [], "resumed": [], "preempted": [], "hits": {}}
        self._serve_running()
        self.serves_running = bool(self.entries)
        if not self.line["preempted"]:
            self._admit()
        if self.has_prefill:
            self.last_prefill = self.calls
        for entry in self.entries.values():
            self._advance(entry)
        if not self.entries and not self.line["preempted"]:
            return None
        return self._told(now), list(self.entries.values())

    def _threshold(self) -> int:
        """Return the most tokens of one request in a step, 0 for no limit; if adaptive, at least a share of the budget.
        A request alone is not limited."""
        requests, threshold = len(self.running) + len(self.waiting), self.config["long_prefill_token_threshold"]
        if requests == 1:
            return 0
        if self.config["long_prefill_token_threshold_adaptive"] and requests:
            return max(threshold, self.budget // requests)
        return threshold

    def _prefills_held(self) -> bool:
        """Return whether prompts pause: until the end of the interval since the last one, if there are decodes, and if
        no request was left waiting after the last admissions."""
        interval, decodes = self.config["prefill_schedule_interval"], any(not r.prefilling for r in self.running)
        recent = self.last_prefill is not None and self.calls - self.last_prefill < interval
        return interval > 1 and decodes and recent and not self.left_waiting

    def _blocks_for(self, tokens: int) -> int:
        return -(-min(tokens, self.limit) // self.config["block_size"])

    def _serve_running(self) -> None:
        """Schedule running requests in order; one that lacks blocks preempts others, the last time itself."""
        for request in list(self.running):
            if self.budget <= 0:
                break
            tokens = self._tokens_of(request) if request in self.running else 0
            if tokens <= 0:
                continue
            need = self._blocks_for(request.computed + tokens + self.lookahead) - len(request.blocks)
            while request in self.running and need > len(self.pool.free):
                self._preempt(self._victim())
            if request in self.running:
                self._serve(request, tokens, need)

    def _tokens_of(self, request: Request) -> int:
        """Return the known, drafted or in-flight tokens that are not computed, within the limits; 0 if the steps in
        flight may deliver the last token, or if it is a prompt and prompts pause."""
        if request.placeholders and request.computed + 2 - request.placeholders >= request.prompt + request.max_tokens:
            return 0
        if self.held and request.prefilling:
            return 0
        tokens = request.known + request.drafts + request.placeholders - request.computed
        tokens = min(tokens, self.threshold or tokens)
        return min(tokens, self.budget - self.extra, self.limit - 1 - request.computed)

    def _victim(self) -> Request:
        """Return the last request; by priority, the least urgent, of these the latest arrival, of these the first."""
        if self.config["policy"] == "fcfs":
            return self.running[-1]
        return max(self.running, key=lambda request: (request.priority, request.arrival_ns))

    def _preempt(self, request: Request) -> None:
        """Preempt a request to the front of the queue; its tokens of this step are returned to the budget."""
        if request in self.entries:
            self.budget += self.entries.pop(request).tokens + self.extra
            self.chunks = [each for each in self.chunks if each is not request]
        self.running.remove(request)
        self.waiting.insert(0, request)
        self.pool.release(request.blocks)
        request.blocks, request.registered = [], 0
        request.computed = request.in_flight = request.placeholders = request.drafts = 0
        request.preemptions += 1
        self.line["preempted"].append(request.name)

    def _serve(self, request: Request, tokens: int, need: int) -> None:
        after = request.computed + tokens
        drafts = max(0, after - request.known - request.placeholders)
        self._give(request, Entry(request, tokens, request.computed, drafts), need)
        if request.prefilling:
            self.chunks.append(request)
            self.has_prefill = True
        request.drafts = 0

    def _give(self, request: Request, entry: Entry, need: int) -> None:
        """Allocate the blocks of an entry. Full ones of known text can be found at once, EAGLE's a token later."""
        request.blocks += [self.pool.take() for _ in range(need)]
        self.entries[request] = entry
        self.budget -= entry.tokens + self.extra
        self._register(request, min(entry.before + entry.tokens, request.known - int(self.eagle)))

    def _register(self, request: Request, tokens: int) -> None:
        """Register the full blocks of the first `tokens` tokens."""
        if self.config["enable_prefix_caching"]:
            for block in range(request.registered, tokens // self.config["block_size"]):
                self.pool.register(request.blocks[block], self.texts.hash(request.name, block))
                request.registered = block + 1

    def _admit(self) -> None:
        """Admit waiting requests in order of the queue until one does not fit."""
        if self.config["policy"] == "priority":
            self.waiting.sort(key=lambda request: (request.priority, request.arrival_ns, request.number))
        while self.waiting and self.budget > 0 and len(self.running) < self.most:
            request = self.waiting[0]
            hits = self._hits(request)
            entry = self._first_entry(request, len(hits) * self.config["block_size"])
            if entry is None or not self._fits(request, entry, hits):
                break
            self._start(request, entry, hits)
        if not self.held:
            self.left_waiting = bool(self.waiting)

    def _hits(self, request: Request) -> list[int]:
        """Return the longest run of leading blocks that can be found, short of the last known token."""
        hits: list[int] = []
        if self.config["enable_prefix_caching"]:
            for block in range((request.known - 1) // self.config["block_size"]):
                owners = self.pool.found.get(self.texts.hash(request.name, block))
                if not owners:
                    break
                hits.append(owners[0])
        return hits

    def _first_entry(self, request: Request, before: int) -> Entry | None:
        """Return the work for a waiting request; None if it has to wait."""
        missing, budget = request.known - before, self.budget - self.extra
        if self.held and missing > 1:
            return None
        tokens = min(missing, self.threshold or missing)
        if tokens > budget and not self.config["enable_chunked_prefill"]:
            return None
        tokens = min(tokens, budget)
        if tokens <= 0:
            return None
        if missing == 1 and self._padded(before):
            return Entry(request, 1 + self.k, before, self.k, padded=True) if 1 + self.k <= budget else None
        return Entry(request, tokens, before, 0)

    def _padded(self, before: int) -> bool:
        """Does a request that lacks one token get filler drafts, to make the batch uniform? So it does in a batch of
        decodes: no chunk is among the running requests served, and there is one, or a prefix was found."""
        decodes = before > 0 or self.serves_running
        return self.k > 0 and not self.chunks and decodes and before + 1 + self.k <= self.limit

    def _fits(self, request: Request, entry: Entry, hits: list[int]) -> bool:
        """Are there blocks for the step and, with the reservation, for all known tokens? Found blocks that are free
        leave the free list; the watermark stays free if anything runs."""
        idle = sum(not self.pool.holders[block] for block in hits)
        spare = self.watermark if self.running else 0
        blocks = self._blocks_for(entry.before + entry.tokens + self.lookahead)
        if self.config["scheduler_reserve_full_isl"]:
            blocks = max(blocks, self._blocks_for(request.known))
        return blocks - len(hits) + idle + spare <= len(self.pool.free)

    def _start(self, request: Request, entry: Entry, hits: list[int]) -> None:
        for block in hits:
            self.pool.share(block)
        self.waiting.remove(request)
        self.running.append(request)
        self.line["resumed" if request.preemptions else "new"].append(request.name)
        self.line["hits"][request.name] = entry.before
        self.has_prefill |= request.known - entry.before > 1
        request.blocks, request.registered, request.computed = list(hits), len(hits), entry.before
        need = self._blocks_for(entry.before + entry.tokens + self.lookahead) - len(hits)
        self._give(request, entry, need)

    def _advance(self, entry: Entry) -> None:
        """The step counts as computed from here on. Asynchronous: so do the tokens that it may give."""
        request = entry.request
        request.computed = entry.before + entry.tokens
        request.in_flight += entry.tokens
        entry.prefilling = request.prefilling = request.computed < request.known + request.placeholders
        entry.preemptions = request.preemptions
        if self.asynchronous and not request.prefilling:
            request.placeholders += 1 + entry.drafts
            request.drafts = self.k

    def _told(self, now: int) -> Line:
        """Return the line of the step as it is scheduled."""
        entries, law = list(self.entries.values()), self.config["time"]
        total = sum(entry.tokens for entry in entries)
        context = sum(entry.before + entry.tokens for entry in entries)
        told = {
            "step": self.steps,
            "sched_ns": now,
            "dur_ns": law["base_ns"] + law["per_token_ns"] * total + law["per_ctx_ns"] * context if total else 0,
            "total": total,
            "sched": [[entry.request.name, entry.tokens, entry.before] for entry in entries],
            "kv_used": self.pool.used,
            "n_running": len(self.running),
            "n_waiting": len(self.waiting),
        }
        if any(entry.drafts for entry in entries):
            told["drafts"] = {entry.request.name: entry.drafts for entry in entries if entry.drafts}
            told["draft_pad"] = [entry.request.name for entry in entries if entry.padded]
        self.steps += 1
        return self.line | told

    def update(self, line: Line, entries: list[Entry]) -> None:
        """Apply the results of a step, and add them to its line. Results of a request that has finished since are
        ignored; those of one that was preempted since deliver their tokens, but do not change its progress."""
        line |= {"emitted": {}, "finished": []}
        accepted: dict[str, list[int]] = {}
        proposed: dict[str, int] = {}
        for entry in entries:
            if not entry.request.finished:
                self._emit(entry, line, self._tokens_given(entry, line["step"], accepted))
                self._propose(entry, line["step"], proposed)
        line |= {"kv_used_end": self.pool.used, "n_hashed": len(self.pool.found)}
        if accepted:
            line["accepted"] = accepted
        if self.k and not self.asynchronous:
            line["proposed"] = proposed

    def _tokens_given(self, entry: Entry, step: int, accepted: dict[str, list[int]]) -> int:
        """One token and the accepted drafts, nothing amid a prompt. Rejected drafts were not computed after all."""
        request, right = entry.request, 0
        if entry.drafts:
            right = self.chance.accepted(step, request.name, entry.drafts, entry.padded)
            accepted[request.name] = [entry.drafts, right]
        if entry.preemptions == request.preemptions:
            request.in_flight -= entry.tokens
            request.computed -= entry.drafts - right
            if self.asynchronous and not entry.prefilling:
                request.placeholders -= 1 + entry.drafts
        return 0 if entry.prefilling else 1 + right

    def _emit(self, entry: Entry, line: Line, given: int) -> None:
        """Deliver tokens up to the last one of the request or of the context; blocks of known text can be found then,
        without the latest token, whose KV is not computed. A complete request is removed."""
        request = entry.request
        given = min(given, request.max_tokens - request.output, self.limit - request.known)
        if given:
            request.output += given
            line["emitted"][request.name] = given
        if entry.preemptions == request.preemptions:
            self._register(request, min(request.computed - request.in_flight, request.known - 1))
        if given and (request.output >= request.max_tokens or request.known >= self.limit):
            line["finished"].append(request.name)
            request.finished = True
            (self.running if request in self.running else self.waiting).remove(request)
            self.pool.release(request.blocks)

    def _propose(self, entry: Entry, step: int, proposed: dict[str, int]) -> None:
        """Set the drafts of the next step; the asynchronous scheduler always assumes k drafts."""
        request = entry.request
        if self.k and not self.asynchronous and not request.finished:
            drafts = self.chance.proposed(step, request.name, entry.prefilling)
            if drafts is not None:
                proposed[request.name] = drafts
                request.drafts = 0 if entry.prefilling else drafts


def steps(config: Line, trace: list[Line], drafts: Drafts, most: int) -> list[Line]:
    """Return the lines of the first `most` steps. One step is in flight at a time, two with asynchronous scheduling."""
    scheduler, lines, under_way = Scheduler(config, trace, drafts), [], []
    future = sorted(_admitted(trace, scheduler.limit), key=lambda request: (request.arrival_ns, request.number))
    now = busy = 0
    while len(lines) < most:
        while future and future[0].arrival_ns <= now:
            scheduler.waiting.append(future.pop(0))
        room = len(under_way) < 1 + scheduler.asynchronous and (scheduler.running or scheduler.waiting)
        if room and (step := scheduler.schedule(now)):
            line = step[0]
            line["t_ns"] = max(now, busy)
            busy = line["end_ns"] = line["t_ns"] + line["dur_ns"]
            under_way.append(step)
            if line["total"] and len(under_way) < 1 + scheduler.asynchronous:
                continue
        if under_way:
            line, entries = under_way.pop(0)
            now = max(now, line["end_ns"])
            scheduler.update(line, entries)
            lines.append(line)
        elif future:
            now = max(now, future[0].arrival_ns)
        else:
            break
    return lines


def _admitted(trace: list[Line], limit: int) -> list[Request]:
    """Return the requests of a trace, except prompts as long as the context, which the front end refuses."""
    return [
        Request(
            number=number,
            name=line["id"],
            arrival_ns=line["arrival_ns"] if "arrival_ns" in line else round(line["arrival_time"] * 1e9),
            prompt=line["num_prefill_tokens"],
            max_tokens=line["num_decode_tokens"],
            priority=line.get("priority", 0),
        )
        for number, line in enumerate(trace)
        if line["num_prefill_tokens"] < limit
    ]
