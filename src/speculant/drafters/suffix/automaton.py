"""A suffix automaton that grows token by token: the longest suffix of a text that occurs in a log, in O(1) per token.

The index behind SAM-Decoding (Hu, Wang, Zhang, Zhang, Li, Chen, Zhang: "SAM Decoding: Speculative Decoding via
Suffix Automaton", ACL 2025, arXiv 2411.10666, section 3), after Blumer et al. (1985). A state represents all contexts
that end at the same positions of the log; it stores the length of the longest one, the latest position where they
ended, and a link to the state of its longest suffix that also ends elsewhere. Every document starts at the root of the
same automaton; where it repeats an earlier one, each token still takes a state, which no context leads to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import Array, Int32
from speculant.drafters.suffix.history import END
from speculant.memory.pages import zeros

LENGTH, LINK, PLACE, FIRST = range(4)
_TOKEN, _TARGET, _NEXT, _SOURCE = range(4)
_STATES, _EDGES, _LAST = range(3)
ROOT = 0
_NO_STATE = -1
_STEP = 256
_LOAD = 0.75
_STATE_BYTES, _EDGE_BYTES = 16, 16 + 4 / _LOAD
_TOUCHED = 32  # contexts whose position is updated per token: in practice all of them, except in endless repetition


class Automaton(NamedTuple):
    """The arrays of an automaton.

    Attributes:
        states: Int32[C, 4], length of the longest context, link, latest position in the log where it ended, first edge.
        edges: Int32[E, 4], token, target state, next edge of the same state, source state; index 0 means no edge.
        slots: Int32[S], indices of the edges, hashed by state and token.
        used: Int64[3], number of states, number of edges, the state of the whole open document.
    """

    states: Array
    edges: Array
    slots: Array
    used: Array


@njit(cache=True, nogil=True)
def _slot(sam: Automaton, state: int, token: int) -> int:
    """Return the slot of an edge, or the empty slot to insert it at."""
    size = len(sam.slots)
    key = (np.uint64(state) << np.uint64(32)) | np.uint64(token)
    mixed = (key ^ (key >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64(((mixed >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32))
    while True:
        edge = sam.slots[slot]
        if edge == 0 or (sam.edges[edge, _SOURCE] == state and sam.edges[edge, _TOKEN] == token):
            return slot
        slot = slot + 1 if slot + 1 < size else 0


@njit(cache=True, nogil=True)
def _edge(sam: Automaton, state: int, token: int) -> int:
    return sam.slots[_slot(sam, state, token)]


@njit(cache=True, nogil=True)
def _add_edge(sam: Automaton, state: int, token: int, target: int) -> None:
    edge = sam.used[_EDGES]
    sam.used[_EDGES] += 1
    fields = sam.edges[edge]
    fields[_TOKEN], fields[_TARGET], fields[_NEXT], fields[_SOURCE] = token, target, sam.states[state, FIRST], state
    sam.states[state, FIRST] = edge
    sam.slots[_slot(sam, state, token)] = edge


@njit(cache=True, nogil=True)
def _add_state(sam: Automaton, length: int, link: int, place: int) -> int:
    state = sam.used[_STATES]
    sam.used[_STATES] += 1
    fields = sam.states[state]
    fields[LENGTH], fields[LINK], fields[PLACE], fields[FIRST] = length, link, place, 0
    return state


@njit(cache=True, nogil=True)
def _count_needed(sam: Automaton, token: int) -> int:
    """Return the maximum number of edges that the next token may add."""
    count, state = 0, sam.used[_LAST]
    while state != _NO_STATE:
        edge = _edge(sam, state, token)
        if edge != 0:
            target = sam.edges[edge, _TARGET]
            if sam.states[target, LENGTH] > sam.states[state, LENGTH] + 1:
                count += 1  # the target itself may gain an edge before it is cloned
                edge = sam.states[target, FIRST]
                while edge != 0:
                    count += 1
                    edge = sam.edges[edge, _NEXT]
            return count
        count += 1
        state = sam.states[state, LINK]
    return count


@njit(cache=True, nogil=True)
def _append(sam: Automaton, log: Array, begin: int, end: int) -> int:
    """Add log[begin:end]; return where it stopped: `end`, or earlier if there is no room."""
    states = sam.states
    for at in range(begin, end):
        token = log[at]
        if sam.used[_STATES] + 2 > len(states) or sam.used[_EDGES] + _count_needed(sam, token) > len(sam.edges):
            return at
        # The contexts that end the text before this token have occurred again: update their latest position.
        state = sam.used[_LAST]
        for _ in range(_TOUCHED):
            if state <= ROOT:
                break
            states[state, PLACE] = at - 1
            state = states[state, LINK]

        state = sam.used[_LAST]
        new = _add_state(sam, states[state, LENGTH] + 1, ROOT, at)
        sam.used[_LAST] = new
        while state != _NO_STATE and _edge(sam, state, token) == 0:
            _add_edge(sam, state, token, new)
            state = states[state, LINK]
        if state == _NO_STATE:
            continue
        target = sam.edges[_edge(sam, state, token), _TARGET]
        if states[target, LENGTH] == states[state, LENGTH] + 1:
            states[new, LINK] = target
            continue
        clone = _add_state(sam, states[state, LENGTH] + 1, states[target, LINK], states[target, PLACE])
        edge = states[target, FIRST]
        while edge != 0:
            _add_edge(sam, clone, sam.edges[edge, _TOKEN], sam.edges[edge, _TARGET])
            edge = sam.edges[edge, _NEXT]
        states[target, LINK] = states[new, LINK] = clone
        while state != _NO_STATE:
            edge = _edge(sam, state, token)
            if edge == 0 or sam.edges[edge, _TARGET] != target:
                break
            sam.edges[edge, _TARGET] = clone
            state = states[state, LINK]
    return end


@njit(cache=True, nogil=True)
def advance(sam: Automaton, state: int, length: int, text: Array) -> tuple[int, int]:
    """Follow a text from a match of `length` tokens; return the state and length of its longest suffix that occurs."""
    states = sam.states
    for token in text:
        while state != ROOT and states[states[state, LINK], LENGTH] >= length:
            state = states[state, LINK]  # the automaton has grown, and the match no longer belongs to this state
        edge = _edge(sam, state, token)
        while edge == 0 and state != ROOT:
            state = states[state, LINK]
            length = states[state, LENGTH]
            edge = _edge(sam, state, token)
        if edge != 0:
            state = sam.edges[edge, _TARGET]
            length += 1
    while state != ROOT and states[states[state, LINK], LENGTH] >= length:
        state = states[state, LINK]
    return state, length


@njit(cache=True, nogil=True)
def _copy_slots(old: Automaton, new: Automaton) -> None:
    for edge in range(1, old.used[_EDGES]):
        new.slots[_slot(new, new.edges[edge, _SOURCE], new.edges[edge, _TOKEN])] = edge


def _new_automaton(states: int, edges: int) -> Automaton:
    sam = Automaton(
        zeros((states, 4), np.int32),
        zeros((edges, 4), np.int32),
        zeros(int(edges / _LOAD) + 1, np.int32),
        np.array([1, 1, ROOT], np.int64),
    )
    sam.states[ROOT, LINK] = _NO_STATE
    return sam


class SuffixAutomaton:
    """A growing automaton and its log. Not safe to share between threads without a lock.

    Attributes:
        sam: arrays of the automaton.
        log: Int32[capacity], documents, each followed by END.
        size: number of tokens and ENDs in the log.
    """

    def __init__(self, *, limit: int | None = None) -> None:
        """Create an empty automaton of at most `limit` bytes; None for no limit."""
        self.limit = limit
        self.sam = _new_automaton(1, 1)
        self.log = np.empty(0, np.int32)
        self.size = 0

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(array.nbytes for array in self.sam) + self.log.nbytes

    @property
    def text(self) -> Int32:
        """The stored documents, each followed by END."""
        return self.log[: self.size]

    @property
    def repeated(self) -> tuple[int, int]:
        """The longest suffix of the log that also occurs earlier: its state, or ROOT, and its length."""
        state = int(self.sam.states[self.sam.used[_LAST], LINK])
        return (state, int(self.sam.states[state, LENGTH])) if state > ROOT else (ROOT, 0)

    def fresh(self) -> SuffixAutomaton:
        """Return an empty automaton with all memory up to the limit allocated, in the same proportions as this one."""
        empty = SuffixAutomaton(limit=self.limit)
        log, states, edges = len(self.log), len(self.sam.states), len(self.sam.edges)
        size = 4 * log + states * _STATE_BYTES + edges * _EDGE_BYTES
        scale = 1.0 if self.limit is None else max(1.0, (self.limit - 64) / size)
        empty.log, empty.sam = (
            np.empty(int(scale * log), np.int32),
            _new_automaton(int(scale * states), int(scale * edges)),
        )
        return empty

    def extend(self, tokens: Int32) -> int:
        """Extend the open document; return how many tokens were added, fewer if the limit is reached."""
        taken = 0
        while taken < len(tokens):
            room = len(self.log) - self.size - 1  # leave room for END
            piece = tokens[taken : taken + max(0, room)]
            self.log[self.size : self.size + len(piece)] = piece
            reached = _append(self.sam, self.log, self.size, self.size + len(piece))
            taken += reached - self.size
            self.size = reached
            if taken < len(tokens) and not self._grow(min(len(tokens) - taken, _STEP)):
                break
        return taken

    def finish(self) -> None:
        """End the open document."""
        if int(self.sam.used[_LAST]) != ROOT:
            self.log[self.size] = END
            self.size += 1
            self.sam.used[_LAST] = ROOT

    def continuation(self, state: int, maximum: int) -> Int32:
        """Return what followed the latest occurrence of a state's contexts, Int32[T], T <= maximum."""
        start = int(self.sam.states[state, PLACE]) + 1
        tokens = self.log[start : min(start + maximum, self.size)]
        ends = np.flatnonzero(tokens == END)
        return (tokens[: ends[0]] if len(ends) else tokens).copy()

    def _grow(self, tokens: int) -> bool:
        """Grow by a quarter if `tokens` more may not fit; return whether the limit allows it."""
        old = self.sam
        log, states, edges = len(self.log), len(old.states), len(old.edges)
        if self.size + tokens + 1 > log:
            log = log * 5 // 4 + tokens + 1
        if int(old.used[_STATES]) + 2 * tokens > states:
            states = states * 5 // 4 + 2 * tokens
        if int(old.used[_EDGES]) + 3 * tokens > edges or (log, states) == (len(self.log), len(old.states)):
            edges = edges * 5 // 4 + 3 * tokens
        if self.limit is not None and 4 * log + states * _STATE_BYTES + edges * _EDGE_BYTES + 64 > self.limit:
            return False
        self.log = np.concatenate([self.text, np.empty(log - self.size, np.int32)])
        self.sam = _new_automaton(states, edges)
        self.sam.states[: len(old.states)], self.sam.edges[: len(old.edges)] = old.states, old.edges
        self.sam.used[:] = old.used
        _copy_slots(old, self.sam)
        return True
