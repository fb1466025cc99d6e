//! The order of work: streams run in order, and events order streams. Everything else is drawn from the seed.
//!
//! Without a seed, or with seed 0, work is done when it is enqueued. With a seed, work stays in its stream until the host
//! waits for it; a few works run at each call, as a device runs ahead of the host. Streams have random ranks. The first
//! stream that can go on runs, until ranks are drawn again, so that one stream may lag far behind another (Burckhardt et
//! al., "A randomized scheduler with probabilistic guarantees of finding bugs", 2010). Nodes of a graph run in a random
//! order that their dependencies allow.

use crate::blocks::Shuffle;
use crate::complain;
use crate::work::Work;
use cudarc::driver::sys::CUresult;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Set when a stream has come to a recorded event, to the time of that.
pub(crate) type Ticket = Arc<OnceLock<Instant>>;

/// Works with the works that follow each.
#[derive(Default)]
pub(crate) struct Graph {
    works: Vec<Work>,
    followers: Vec<Vec<usize>>,
    /// For each work, the number of works that it waits for.
    waits_for: Vec<usize>,
}

impl Graph {
    /// Adds a work that waits for others; returns its number.
    pub(crate) fn add(&mut self, work: Work, after: &[usize]) -> usize {
        let at = self.works.len();
        self.works.push(work);
        self.followers.push(Vec::new());
        self.waits_for.push(after.len());
        for &before in after {
            self.followers[before].push(at);
        }
        at
    }

    /// True if every work comes before a work of the list, or is in it.
    pub(crate) fn ends_with(&self, list: &[usize]) -> bool {
        let mut reaches: Vec<bool> = vec![false; self.works.len()];
        for at in (0..self.works.len()).rev() {
            reaches[at] = list.contains(&at) || self.followers[at].iter().any(|&next| reaches[next]);
        }
        reaches.into_iter().all(|reaches| reaches)
    }
}

/// A launch of a graph.
struct Replay {
    graph: Arc<Graph>,
    waits_for: Vec<usize>,
    ready: Vec<usize>,
}

enum Item {
    Work(Work),
    Replay(Replay),
    Record(Ticket),
    Wait(Ticket),
}

/// The queue of a stream.
#[derive(Default)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

/// The queues of all streams.
pub(crate) struct Schedule {
    pub(crate) queues: BTreeMap<usize, Queue>,
    ranks: Vec<usize>,
    shuffle: Shuffle,
    /// The error of the work that failed: all later calls fail with it.
    pub(crate) failure: Option<CUresult>,
}

impl Schedule {
    pub(crate) fn new() -> Schedule {
        let shuffle = Shuffle::of_environment();
        Schedule { queues: BTreeMap::new(), ranks: Vec::new(), shuffle, failure: None }
    }

    /// Draws from the seed that is set now.
    pub(crate) fn reseed(&mut self) {
        self.shuffle = Shuffle::of_environment();
    }

    fn push(&mut self, stream: usize, item: Item) {
        self.queues.entry(stream).or_default().items.push_back(item);
        if !self.shuffle.is_random() {
            while self.step() {}
            return;
        }
        for _ in 0..self.shuffle.below(3) {
            self.step();
        }
    }

    pub(crate) fn work(&mut self, stream: usize, work: Work) {
        self.push(stream, Item::Work(work));
    }

    pub(crate) fn replay(&mut self, stream: usize, graph: Arc<Graph>) {
        let waits_for = graph.waits_for.clone();
        let ready = (0..waits_for.len()).filter(|&at| waits_for[at] == 0).rev().collect();
        self.push(stream, Item::Replay(Replay { graph, waits_for, ready }));
    }

    pub(crate) fn record(&mut self, stream: usize) -> Ticket {
        let ticket = Ticket::default();
        self.push(stream, Item::Record(ticket.clone()));
        ticket
    }

    pub(crate) fn wait(&mut self, stream: usize, ticket: Ticket) {
        self.push(stream, Item::Wait(ticket));
    }

    /// Runs work until `done`, which is of the queues, or until no work is left.
    pub(crate) fn run_until(&mut self, done: impl Fn(&Schedule) -> bool) -> Option<CUresult> {
        while self.failure.is_none() && !done(self) && self.step() {}
        self.failure
    }

    /// Does one work of a stream that can go on; false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        self.pass_events();
        let ready: Vec<usize> =
            self.queues.iter().filter(|(_, queue)| can_go_on(queue)).map(|(&id, _)| id).collect();
        if ready.is_empty() {
            if self.queues.values().any(|queue| !queue.is_empty()) {
                complain("streams wait for each other");
            }
            return false;
        }
        if self.ranks.is_empty() || self.shuffle.below(8) == 0 {
            self.ranks = self.shuffle.order(16);
        }
        let stream = ready.into_iter().min_by_key(|&id| (self.ranks[id % 16], id));
        let Some(queue) = stream.and_then(|id| self.queues.get_mut(&id)) else { return false };
        let outcome = match queue.items.pop_front() {
            Some(Item::Work(work)) => work.run(),
            Some(Item::Replay(mut replay)) => {
                let outcome = replay.step(&mut self.shuffle);
                if !replay.ready.is_empty() {
                    queue.items.push_front(Item::Replay(replay));
                }
                outcome
            }
            Some(Item::Record(_) | Item::Wait(_)) | None => CUresult::CUDA_SUCCESS,
        };
        if outcome != CUresult::CUDA_SUCCESS {
            self.failure = Some(outcome);
            self.queues.values_mut().for_each(|queue| queue.items.clear());
            return false;
        }
        self.pass_events();
        true
    }

    /// Passes the events at the heads of the streams.
    fn pass_events(&mut self) {
        loop {
            let mut has_passed = false;
            for queue in self.queues.values_mut() {
                let passes = match queue.items.front() {
                    Some(Item::Record(ticket)) => {
                        let _ = ticket.set(Instant::now());
                        true
                    }
                    Some(Item::Wait(ticket)) => ticket.get().is_some(),
                    Some(Item::Replay(replay)) => replay.ready.is_empty(),
                    Some(Item::Work(_)) | None => false,
                };
                if passes {
                    queue.items.pop_front();
                    has_passed = true;
                }
            }
            if !has_passed {
                return;
            }
        }
    }
}

fn can_go_on(queue: &Queue) -> bool {
    matches!(queue.items.front(), Some(Item::Work(_) | Item::Replay(_)))
}

impl Replay {
    /// Does one work of the graph.
    fn step(&mut self, shuffle: &mut Shuffle) -> CUresult {
        let chosen = if shuffle.is_random() { shuffle.below(self.ready.len()) } else { self.ready.len() - 1 };
        let at = self.ready.remove(chosen);
        for &next in self.graph.followers[at].iter().rev() {
            self.waits_for[next] -= 1;
            if self.waits_for[next] == 0 {
                self.ready.push(next);
            }
        }
        self.graph.works[at].run()
    }
}
