//! A model that is served: its engine, its sequences and what it has been asked.

use crate::fault::Fault;
use crate::inference::{Inference, Wanted};
use crate::protocol::answer::{Rows, Tensor};
use crate::sequences::{Begin, Current, Keep, Lease, Name, Sequences, Why};
use crate::statistics::{Statistics, Times};
use crate::trace::Trace;
use candle_models::candle_core::DType;
use candle_models::engine::{self, Engine, EngineError, Options, Session, Steps};
use candle_models::signature::Signature;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A bundle has one version.
pub(crate) const VERSION: &str = "1";

/// A model that is served.
pub(crate) struct Model {
    pub name: String,
    /// The name of its family, for people.
    pub family: String,
    pub signature: Signature,
    /// Most rows of a request, and of a batch of the engine.
    pub max_batch: usize,
    pub engine: Engine,
    /// How many engines the model has had before this one.
    generation: u64,
    pub sequences: Arc<Sequences>,
    pub statistics: Statistics,
    /// How long loading took, from the first byte that was read.
    pub load: Duration,
}

/// The sessions of the rows of a request.
enum Sessions {
    /// Opened for this request.
    Fresh(Vec<Session>),
    Sequences(Vec<Lease>),
}

impl Model {
    /// Starts the engine of a model. It shares the sequences of an older one of the same signature, if there is one: each goes on in the
    /// new engine with its next step.
    pub fn start(
        name: &str,
        model: Arc<dyn engine::Model>,
        options: &Options,
        keep: &Keep,
        older: Option<&Self>,
    ) -> candle_models::Result<Self> {
        let (family, signature) = (model.family().to_owned(), model.signature().clone());
        let engine = Engine::start(model, options)?;
        let older = older.filter(|older| older.signature == signature);
        let max_batch = options.max_batch.min(options.sessions);
        let sequences = older.map_or_else(|| Sequences::new(name, &signature, keep), |older| older.sequences.clone());
        Ok(Self {
            name: name.to_owned(),
            family,
            signature,
            max_batch,
            engine,
            generation: older.map_or(0, |older| older.generation + 1),
            sequences,
            statistics: Statistics::new(max_batch),
            load: Duration::ZERO,
        })
    }

    /// The engine for sequences that begin.
    pub fn current(&self) -> Current<'_> {
        Current { engine: &self.engine, generation: self.generation }
    }

    /// Ends the sequences of the model that it replaces, unless they are its own.
    pub fn replace(&self, older: &Self) {
        if !Arc::ptr_eq(&self.sequences, &older.sequences) {
            older.sequences.close(Why::Reloaded);
        }
    }

    /// Steps the rows of a request. The answer is in their sessions; dropping the future gives the step up.
    pub async fn step(&self, inference: &Inference, trace: &mut Option<Trace>) -> Result<Stepped, Fault> {
        let mut sessions = self.sessions(inference).await?;
        let began = Instant::now();
        sessions.each().enumerate().try_for_each(|(row, session)| inference.fill(&self.signature, row, session))?;
        let input = began.elapsed();
        if let Some(trace) = trace.as_mut().filter(|trace| trace.has_tensors()) {
            sessions.trace_inputs(&self.signature, trace)?;
        }
        // Several sequences go on together or not at all: once the first has been asked for, none may be too late.
        let deadline = inference.deadline;
        if inference.sequences.len() > 1 && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Fault::deadline());
        }
        let deadline = deadline.filter(|_| inference.sequences.len() <= 1);
        sessions.begin_step();
        let stepped = together(sessions.each().collect(), deadline).await;
        sessions.end_step(inference, stepped.is_ok());
        if let Err(EngineError::Failed(_) | EngineError::Panicked(_)) = &stepped {
            self.sequences.ended.count(Why::Lost, inference.sequences.len());
        }
        stepped?;
        sessions.keep_snapshots(inference).await?;
        let step = sessions.each().next().map(|session| session.timing()).unwrap_or_default();
        Ok(Stepped { sessions, times: Times { input, step, output: Duration::ZERO } })
    }

    async fn sessions(&self, inference: &Inference) -> Result<Sessions, Fault> {
        if inference.sequences.is_empty() {
            let fresh = (0..inference.rows).map(|_| self.engine.open()).collect::<Result<_, EngineError>>()?;
            return Ok(Sessions::Fresh(fresh));
        }
        // In one order for all requests: two that want the same sequences do not wait for each other.
        let mut order: Vec<usize> = (0..inference.rows).collect();
        order.sort_unstable_by_key(|row| &inference.sequences[*row].id);
        let mut leases: Vec<Option<Lease>> = order.iter().map(|_| None).collect();
        for row in order {
            let step = &inference.sequences[row];
            let begin = if step.start { Begin::Start } else { Begin::GoOn };
            leases[row] =
                Some(self.sequences.lease(self.current(), &Name::new(&inference.principal, &step.id), begin, inference.deadline).await?);
        }
        let mut leases: Vec<Lease> = leases.into_iter().flatten().collect();
        // Not before all of them are there: what is refused leaves everything as it was.
        let starts = leases.iter_mut().zip(&inference.sequences).filter(|(_, step)| step.start);
        starts.into_iter().try_for_each(|(lease, _)| lease.restart(self.current()))?;
        Ok(Sessions::Sequences(leases))
    }
}

impl Sessions {
    /// The session of each row.
    fn each(&mut self) -> impl Iterator<Item = &mut Session> {
        let (fresh, leases) = match self {
            Self::Fresh(sessions) => (Some(sessions), None),
            Self::Sequences(leases) => (None, Some(leases)),
        };
        fresh.into_iter().flatten().chain(leases.into_iter().flatten().map(Lease::session))
    }

    /// Their inputs as the model gets them.
    fn trace_inputs(&mut self, signature: &Signature, trace: &mut Trace) -> Result<(), Fault> {
        for spec in &signature.inputs {
            if spec.dtype() == DType::U32 {
                let rows = self.each().map(|session| Ok(&*session.indices_mut(&spec.name)?)).collect::<Result<_, Fault>>()?;
                trace.input(&spec.name, &spec.shape, &Rows::Indices(rows));
            } else {
                let rows = self.each().map(|session| Ok(&*session.floats_mut(&spec.name)?)).collect::<Result<_, Fault>>()?;
                trace.input(&spec.name, &spec.shape, &Rows::Floats(rows));
            }
        }
        Ok(())
    }

    /// The session of a row that has been stepped.
    fn row(&self, row: usize) -> &Session {
        match self {
            Self::Fresh(sessions) => &sessions[row],
            Self::Sequences(leases) => leases[row].stepped(),
        }
    }

    fn begin_step(&mut self) {
        if let Self::Sequences(leases) = self {
            leases.iter_mut().for_each(Lease::begin_step);
        }
    }

    /// What begins anew or is over leaves no snapshot of what was before; what goes on has one of this step, if it has to be there by now.
    async fn keep_snapshots(&mut self, inference: &Inference) -> Result<(), Fault> {
        let Self::Sequences(leases) = self else { return Ok(()) };
        for (lease, step) in leases.iter_mut().zip(&inference.sequences) {
            if step.start || step.end {
                lease.forget_snapshot().await?;
            }
            if !step.end {
                lease.keep_step().await?;
            }
        }
        Ok(())
    }

    /// A sequence whose first step succeeded stays, one whose last step did is over.
    fn end_step(&mut self, inference: &Inference, succeeded: bool) {
        let Self::Sequences(leases) = self else { return };
        for (lease, step) in leases.iter_mut().zip(&inference.sequences) {
            lease.end_step();
            match (succeeded, step.end) {
                (true, true) => lease.end(Why::Asked),
                (true, false) => lease.keep(),
                (false, _) => {}
            }
        }
    }
}

/// Rows that have been stepped, with their outputs.
pub(crate) struct Stepped {
    sessions: Sessions,
    pub times: Times,
}

impl Stepped {
    /// The outputs that a request wants. Those that it wants in shared memory are written there.
    pub fn tensors<'a>(&'a self, signature: &'a Signature, inference: &'a Inference) -> Result<Vec<Tensor<'a>>, Fault> {
        let tensor = |wanted: &'a Wanted| {
            let &Wanted { index, binary, classes, ref shared } = wanted;
            let spec = &signature.outputs[index];
            let sessions = (0..inference.rows).map(|row| self.sessions.row(row));
            let rows = match spec.dtype() {
                DType::U32 => Rows::Indices(sessions.map(|session| session.indices(&spec.name)).collect::<Result<_, _>>()?),
                _ => Rows::Floats(sessions.map(|session| session.floats(&spec.name)).collect::<Result<_, _>>()?),
            };
            let (Some(most), Some((&width, outer))) = (classes, spec.shape.split_last()) else {
                let shared = shared.as_ref().map(|window| window.write(&rows).map(|()| &window.range)).transpose()?;
                return Ok(Tensor { name: &spec.name, shape: Cow::Borrowed(&spec.shape), rows, binary, shared });
            };
            let (rows, width) = rows.classes(width, most);
            Ok(Tensor { name: &spec.name, shape: [outer, &[width]].concat().into(), rows, binary, shared: None })
        };
        inference.outputs.iter().map(tensor).collect()
    }
}

/// Steps of sessions that share their batches with those of other requests that are there by now.
async fn together(sessions: Vec<&mut Session>, deadline: Option<Instant>) -> Result<(), EngineError> {
    let steps = Steps::request(sessions, deadline).await?;
    tokio::task::yield_now().await;
    steps.await
}
