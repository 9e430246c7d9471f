//! Inferences over a stream: those that wait for no other of the same stream run at the same time, and answers come in the order of the
//! requests.

use super::convert;
use super::infer::infer;
use super::metadata::Beside;
use super::status::{code, ending, status, too_large};
use crate::fault::Fault;
use crate::inference::IDS;
use crate::keys::Principal;
use crate::listen::{Phase, closing};
use crate::proto::infer_parameter::ParameterChoice;
use crate::proto::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use crate::protocol::request::SequenceId;
use crate::server::Shared;
use crate::spans::Parent;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesOrdered, StreamExt, unfold};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status, Streaming};

/// Requests of a stream that run at the same time. The next one is read when the first of them is answered.
const RUNNING: usize = 64;

/// The name of the spans of its requests: each has one.
const STREAM: &str = "inference.GRPCInferenceService/ModelStreamInfer";

/// Answers of a stream.
pub(super) type Answers = BoxStream<'static, Result<ModelStreamInferResponse, Status>>;

/// What an error does to its stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnError {
    /// It is told, and the next request is answered.
    GoOn,
    /// It ends the stream, as its status.
    End,
}

impl OnError {
    /// As the client wants it.
    pub fn of(metadata: &MetadataMap) -> Self {
        match metadata.get("triton_grpc_error").map(|value| value.as_bytes()) {
            Some(b"true") => Self::End,
            _ => Self::GoOn,
        }
    }
}

/// The sequences of a request, which other requests of the stream have to be answered before.
#[derive(Debug, PartialEq, Eq)]
enum Order {
    /// It has none: it waits for nobody.
    Free,
    /// It has one of a model.
    Sequence(String, SequenceId),
    /// It has several: it waits for all that have one.
    Sequences,
}

impl Order {
    fn of(message: &ModelInferRequest) -> Self {
        if message.inputs.iter().any(|input| input.name == IDS) {
            return Self::Sequences;
        }
        match convert::sequence(&message.parameters, None) {
            Ok(Some(step)) => Self::Sequence(message.model_name.clone(), step.id),
            // A request that is wrong is refused at once.
            Ok(None) | Err(_) => Self::Free,
        }
    }

    fn waits_for(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Free, _) | (_, Self::Free) => false,
            (Self::Sequences, _) | (_, Self::Sequences) => true,
            (one, other) => one == other,
        }
    }
}

/// What became of a request, by its model and id.
type Answered = Result<ModelInferResponse, (Fault, String, String)>;

/// A stream on its way.
struct Calls {
    shared: Arc<Shared>,
    principal: Principal,
    /// What the spans of its requests belong to, if there are any.
    parent: Option<Parent>,
    requests: Streaming<ModelInferRequest>,
    phase: watch::Receiver<Phase>,
    /// When the client does not wait any longer.
    deadline: Option<Instant>,
    on_error: OnError,
    running: FuturesOrdered<BoxFuture<'static, Answered>>,
    /// The sequences of those that run.
    orders: VecDeque<Order>,
    /// Waits for one of them.
    held: Option<(Order, ModelInferRequest)>,
    /// No request is read any more, for that reason.
    end: Option<Result<(), Status>>,
}

/// The answers to the requests of a stream.
pub(super) fn answers(
    shared: Arc<Shared>,
    (principal, parent): (Principal, Option<Parent>),
    requests: Streaming<ModelInferRequest>,
    deadline: Option<Instant>,
    on_error: OnError,
) -> Answers {
    let phase = shared.phase.clone();
    let (running, orders, held, end) = (FuturesOrdered::new(), VecDeque::new(), None, None);
    let calls = Calls { shared, principal, parent, requests, phase, deadline, on_error, running, orders, held, end };
    unfold(calls, |mut calls| async { Some((calls.next().await?, calls)) }).boxed()
}

impl Calls {
    async fn next(&mut self) -> Option<Result<ModelStreamInferResponse, Status>> {
        loop {
            if self.held.as_ref().is_some_and(|(order, _)| !self.orders.iter().any(|other| order.waits_for(other))) {
                let held = self.held.take();
                held.into_iter().for_each(|(order, message)| self.start(order, message));
            }
            let open = self.end.is_none();
            let room = open && self.held.is_none() && self.running.len() < RUNNING;
            tokio::select! {
                biased;
                Some(answered) = self.running.next() => {
                    self.orders.pop_front();
                    return Some(self.tell(answered));
                }
                () = closing(&mut self.phase), if open => self.end = Some(Err(ending())),
                message = self.requests.message(), if room => match message {
                    Ok(Some(message)) => self.held = Some((Order::of(&message), message)),
                    Ok(None) => self.end = Some(Ok(())),
                    Err(error) if error.code() == Code::OutOfRange => self.end = Some(Err(too_large(&self.shared.options.limits))),
                    Err(error) => self.end = Some(Err(error)),
                },
                else => break,
            }
        }
        // Everything that was asked has been answered.
        self.end.replace(Ok(()))?.err().map(Err)
    }

    fn start(&mut self, order: Order, message: ModelInferRequest) {
        let (shared, principal, deadline) = (self.shared.clone(), self.principal.clone(), self.deadline);
        let parent = self.parent.clone();
        self.orders.push_back(order);
        self.running.push_back(Box::pin(async move {
            let limit = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let span = parent.and_then(|parent| shared.spans.as_ref()?.grpc(&parent, STREAM));
            let answer = infer(&shared, &principal, &message, Beside { limit, sequence: None }, span.as_ref()).await;
            span.into_iter().for_each(|span| span.end_grpc(answer.as_ref().err().map_or(Code::Ok, |fault| code(fault.kind))));
            answer.map_err(|fault| (fault, message.model_name, message.id))
        }));
    }

    fn tell(&self, answered: Answered) -> Result<ModelStreamInferResponse, Status> {
        let (error_message, mut answer) = match answered {
            Ok(answer) => (String::new(), answer),
            Err((fault, ..)) if self.on_error == OnError::End => return Err(status(fault)),
            Err((fault, model_name, id)) => (fault.message, ModelInferResponse { model_name, id, ..Default::default() }),
        };
        // A request has one answer here.
        let last = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
        answer.parameters.insert("triton_final_response".to_owned(), last);
        Ok(ModelStreamInferResponse { error_message, infer_response: Some(answer) })
    }
}
