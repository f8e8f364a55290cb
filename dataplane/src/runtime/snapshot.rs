//! What a run has done so far, put together of what its workers answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::Timebase;
use crate::runtime::report::{self, Outcome};
use crate::runtime::sample::{Counters, Facts, Request, Sample, Times};
use crate::telemetry::{Recent, Report};

/// How long workers are waited for. One answers within 256 loops, or when it next wakes.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a run has done up to a moment.
#[derive(Clone)]
pub struct Snapshot {
    report: Report,
    times: Times,
    timebase: Timebase,
}

impl Snapshot {
    pub(crate) fn new(report: Report, times: Times, timebase: Timebase) -> Self {
        Self { report, times, timebase }
    }

    /// All since the start, in the words of the report that a run ends with. `held` are packets on their way. Counters of
    /// stages' own come at the end alone.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What came after an earlier snapshot of the same run; `None`: since its start.
    pub fn since(&self, earlier: Option<&Self>) -> Recent {
        let times = earlier.map_or_else(|| self.times.clone(), |earlier| self.times.since(&earlier.times));
        let mut recent = Recent::between(earlier.map(Self::report), &self.report);
        recent.latency_ns = times.latency.report();
        recent.costs = report::costs(&times.costs, &self.report.stages, &self.timebase);
        recent
    }
}

/// Asks the workers of a run.
pub(crate) struct Sampler {
    workers: Vec<Asked>,
    /// What the samples brought up to now.
    times: Times,
    /// When workers were asked; `None`: they are not.
    since: Option<Instant>,
}

struct Asked {
    facts: Arc<Facts>,
    request: Request,
    /// For the next answer: what the worker gave at first, or what it answered last. `None`: it was asked, and has not answered.
    empty: Option<Box<Sample>>,
    counters: Option<Counters>,
}

impl Sampler {
    /// Of these workers, in their order, each with an empty sample of its own.
    pub(crate) fn new(workers: impl IntoIterator<Item = (Arc<Facts>, Box<Sample>, Request)>) -> Self {
        let asked = |(facts, empty, request)| Asked { facts, request, empty: Some(empty), counters: None };
        let workers: Vec<Asked> = workers.into_iter().map(asked).collect();
        let stages = workers.first().map_or(0, |worker| worker.facts.shapes.len());
        Self { workers, times: Times::new(stages), since: None }
    }

    /// Asks, where that is not done yet. Once all workers have answered, or patience is over: what each has done, and
    /// which of those that have not ended have not answered. What is told of one that has not is what it last said.
    pub(crate) fn poll(&mut self) -> Option<(Vec<Outcome>, Vec<String>)> {
        let since = *self.since.get_or_insert_with(|| {
            self.workers.iter_mut().for_each(Asked::ask);
            Instant::now()
        });
        let times = &mut self.times;
        let open = self.workers.iter_mut().fold(false, |open, worker| open | !worker.take(times));
        if open && since.elapsed() < PATIENCE {
            return None;
        }
        self.since = None;
        let late = |(number, worker): (usize, &Asked)| {
            let is_late = worker.empty.is_none() && !worker.request.is_over();
            is_late.then(|| format!("worker {number} does not answer: what is told of it is what it said before"))
        };
        let late = self.workers.iter().enumerate().filter_map(late).collect();
        Some((self.workers.iter().map(Asked::outcome).collect(), late))
    }

    /// What was answered up to now. The workers have ended.
    pub(crate) fn finish(mut self) -> Times {
        for worker in &mut self.workers {
            worker.take(&mut self.times);
        }
        self.times
    }

    pub(crate) fn times(&self) -> &Times {
        &self.times
    }
}

impl Asked {
    fn ask(&mut self) {
        if let Some(sample) = self.empty.take() {
            self.request.ask(sample);
        }
    }

    /// Takes the answer, if there is one. Whether none is waited for.
    fn take(&mut self, times: &mut Times) -> bool {
        if self.empty.is_some() {
            return true;
        }
        // In this order: an answer may be its last word.
        let is_over = self.request.is_over();
        let Some(mut sample) = self.request.answer() else { return is_over };
        times.add(&sample.times);
        sample.clear();
        match &mut self.counters {
            Some(counters) => counters.clone_from(&sample.counters),
            none => *none = Some(sample.counters.clone()),
        }
        self.empty = Some(sample);
        true
    }

    fn outcome(&self) -> Outcome {
        match &self.counters {
            Some(counters) => counters.outcome(&self.facts),
            None => Sample::new(&self.facts).counters.outcome(&self.facts),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::mem::PageKind;
    use crate::runtime::sample;
    use crate::units::CoreId;

    fn facts() -> Arc<Facts> {
        let (ports, shapes) = (Vec::new(), Vec::new());
        let granted = BTreeMap::new();
        Arc::new(Facts { core: CoreId(0), slots: 0, pages: PageKind::Huge2M, granted, ports, shapes })
    }

    #[test]
    fn a_worker_writes_into_memory_of_its_own_alone() {
        let (facts, (request, mut reply)) = (facts(), sample::channel());
        let own = Box::new(Sample::new(&facts));
        let address = &raw const *own;
        let mut sampler = Sampler::new([(facts, own, request)]);
        for _ in 0..3 {
            assert!(sampler.poll().is_none());
            let asked = reply.asked().unwrap();
            assert_eq!(&raw const *asked, address);
            reply.give(asked);
            assert!(sampler.poll().is_some());
        }
    }

    #[test]
    fn a_worker_that_has_ended_is_no_error_and_not_waited_for() {
        let (facts, (request, reply)) = (facts(), sample::channel());
        let own = Box::new(Sample::new(&facts));
        let mut sampler = Sampler::new([(facts, own, request)]);
        assert!(sampler.poll().is_none());
        drop(reply);
        let (outcomes, late) = sampler.poll().unwrap();
        assert_eq!((outcomes.len(), late), (1, Vec::new()));
    }
}
