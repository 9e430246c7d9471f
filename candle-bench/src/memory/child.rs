//! The other side: a process that does one kind of work and counts what it asks for.
//!
//! Its argument is a [`Request`] in JSON. Then every line of its input is a number of calls, and it answers with a line of JSON,
//! [`Counted`], until its input ends.

use crate::calls::{EngineCalls, Inputs, TensorCalls};
use crate::case::Case;
use crate::family::{self, Families, OwnWork};
use crate::harness::{self, Round, Subject};
use crate::host::{self, peak_kilobytes};
use crate::network::{Network, Place};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

/// Bytes of a page, the least that a fault brings.
pub const PAGE_BYTES: usize = 4096;

/// What is done over and over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// A step of the engine, its inputs copied in: it allocates nothing.
    EngineStep {
        /// The network.
        bundle: PathBuf,
    },
    /// A step on tensors, a fresh one for every result.
    TensorStep {
        /// The network.
        bundle: PathBuf,
    },
    /// Forward, backward and update over a batch of windows.
    TrainingStep {
        /// The network.
        bundle: PathBuf,
    },
    /// Work of a family's own.
    Own {
        /// The family.
        family: String,
        /// Which of its works.
        name: String,
        /// What it is done with.
        config: Value,
    },
}

impl Workload {
    /// In words.
    pub fn name(&self) -> &str {
        match self {
            Self::EngineStep { .. } => "engine step",
            Self::TensorStep { .. } => "step on tensors",
            Self::TrainingStep { .. } => "training step",
            Self::Own { name, .. } => name,
        }
    }

    fn subject(&self, families: &Families, case: &Case) -> Result<Box<dyn Subject>> {
        let opened = |bundle: &Path| -> Result<_> {
            let network = Network::open(families, bundle)?;
            let model = network.load()?;
            let inputs = Inputs::random(&*model, case);
            Ok((network, model, inputs))
        };
        Ok(match self {
            Self::EngineStep { bundle } => {
                let (_, model, inputs) = opened(bundle)?;
                Box::new(EngineCalls::new(model, case, &inputs, &Place::cpu())?)
            }
            Self::TensorStep { bundle } => {
                let (_, model, inputs) = opened(bundle)?;
                Box::new(TensorCalls::new(model, case, &inputs)?)
            }
            Self::TrainingStep { bundle } => {
                let (network, _, inputs) = opened(bundle)?;
                let updates = network.family.updates().with_context(|| format!("a {} has no training step", network.family.name()))?;
                Box::new(updates(&network, case, &inputs)?)
            }
            Self::Own { family, name, config } => {
                let work = OwnWork { name: name.clone(), case: case.clone(), config: config.clone() };
                family::named(families, family)?.workload(&work)?
            }
        })
    }
}

/// What the process is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The work.
    pub workload: Workload,
    /// Its sizes.
    pub case: Case,
}

/// What the allocator has been asked for since the process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Calls that asked for memory.
    pub count: usize,
    /// Bytes that they asked for.
    pub bytes: usize,
}

/// A round and what it took.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Counted {
    /// Times of its calls.
    pub round: Round,
    /// Which allocator answered.
    pub allocator: String,
    /// Requests for memory.
    pub requests: usize,
    /// Bytes of them.
    pub bytes: usize,
    /// Minor page faults.
    pub faults: usize,
    /// Growth of the address space in bytes; below zero where memory went back.
    pub mapped_bytes: i64,
    /// Peak of the resident set so far in KiB.
    pub peak_kilobytes: u64,
}

/// Answers rounds until the input ends. `requests` reads the counter of the allocator of that name.
pub fn serve(families: &Families, request: &str, allocator: &str, requests: impl Fn() -> Requests) -> Result<()> {
    let Request { workload, case } = serde_json::from_str(request).context("not a request")?;
    let mut subject = workload.subject(families, &case)?;
    let (input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    for line in input.lines() {
        let calls = line?.trim().parse().context("not a number of calls")?;
        let counted = count(subject.as_mut(), calls, allocator, &requests)?;
        writeln!(output, "{}", serde_json::to_string(&counted)?)?;
        output.flush()?;
    }
    Ok(())
}

fn count(subject: &mut dyn Subject, calls: usize, allocator: &str, requests: impl Fn() -> Requests) -> Result<Counted> {
    // Nothing of the counting's own is counted.
    let mut latencies_us = Vec::with_capacity(calls);
    let (faults, mapped) = (minor_faults()?, address_space_bytes()?);
    let before = requests();
    let seconds = harness::time(subject, calls, &mut latencies_us)?;
    let after = requests();
    Ok(Counted {
        round: Round { latencies_us, seconds },
        allocator: allocator.to_owned(),
        requests: after.count - before.count,
        bytes: after.bytes - before.bytes,
        faults: minor_faults()? - faults,
        mapped_bytes: address_space_bytes()? as i64 - mapped as i64,
        peak_kilobytes: peak_kilobytes()?,
    })
}

/// Minor page faults of this process so far.
fn minor_faults() -> Result<usize> {
    let faults = host::status_field(10).context("page faults are read from /proc/self/stat, which does not tell them")?;
    Ok(usize::try_from(faults)?)
}

/// Bytes of this process's address space, from the first field of /proc/self/statm.
fn address_space_bytes() -> Result<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").context("the address space is read from /proc, which is not there")?;
    let pages: usize = statm.split_whitespace().next().context("/proc/self/statm is empty")?.parse()?;
    Ok(pages * PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Pass;
    use crate::{families, testing};
    use clap::ArgMatches;
    use std::cell::Cell;

    #[test]
    fn faults_and_address_space_grow_with_what_is_touched() {
        let (faults, mapped) = (minor_faults().unwrap(), address_space_bytes().unwrap());
        let mut block = vec![0u8; 64 << 20];
        block.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
        assert!(minor_faults().unwrap() > faults, "64 MB were touched");
        assert!(address_space_bytes().unwrap() > mapped, "{}", block.len());
    }

    #[test]
    fn what_is_counted_is_the_calls_and_nothing_else() {
        struct Asks<'a>(&'a Cell<usize>);
        impl Subject for Asks<'_> {
            fn run(&mut self) -> Result<()> {
                self.0.set(self.0.get() + 3);
                Ok(())
            }
        }
        let asked = Cell::new(100);
        let requests = || Requests { count: asked.get(), bytes: 10 * asked.get() };
        let counted = count(&mut Asks(&asked), 4, "system", requests).unwrap();
        assert_eq!((counted.requests, counted.bytes, counted.round.latencies_us.len()), (12, 120, 4));
        assert!(counted.peak_kilobytes > 1000);
    }

    #[test]
    fn every_workload_runs() {
        let directory = tempfile::tempdir().unwrap();
        let (families, network) = (families::shipped(), testing::network("mamba", directory.path()));
        let bundle = || network.bundle.clone();
        let (step, train) = (network.case(Pass::Step, 2, 1, 1), network.case(Pass::Train, 2, 3, 1));
        for (workload, case) in [
            (Workload::EngineStep { bundle: bundle() }, &step),
            (Workload::TensorStep { bundle: bundle() }, &step),
            (Workload::TrainingStep { bundle: bundle() }, &train),
        ] {
            let mut subject = workload.subject(&families, case).unwrap();
            (0..2).for_each(|_| subject.run().unwrap());
            let text = serde_json::to_string(&Request { workload: workload.clone(), case: case.clone() }).unwrap();
            assert_eq!(serde_json::from_str::<Request>(&text).unwrap().workload, workload);
        }
        let own: Vec<_> = families.iter().flat_map(|family| super::super::own_work(family, &ArgMatches::default()).unwrap()).collect();
        assert!(!own.is_empty());
        for (workload, case) in own {
            let text = serde_json::to_string(&Request { workload: workload.clone(), case }).unwrap();
            let request: Request = serde_json::from_str(&text).unwrap();
            assert_eq!(request.workload, workload);
            // As small as it gets.
            let case = Case { batch: 1, ..request.case };
            request.workload.subject(&families, &case).unwrap().run().unwrap();
        }
        let nobody = Workload::Own { family: "poker".to_owned(), name: "a hand".to_owned(), config: Value::Null };
        assert_eq!(nobody.subject(&families, &step).err().unwrap().to_string(), "no family poker in this program");
    }
}
