//! Pages of sequences: what one is at, its state in and out, and a second one that goes on from it.

use super::reply::{self, Answer};
use crate::fault::{Fault, Kind};
use crate::keys::Principal;
use crate::model::Model;
use crate::protocol::request::SequenceId;
use crate::sequences::{Begin, Lease, Name};
use bytes::Bytes;
use candle_models::Error;
use candle_models::candle_core::safetensors::load_buffer;
use candle_models::candle_core::{self, Device};
use candle_models::engine::EngineError;
use candle_models::tensors::NamedTensors;
use serde::{Deserialize, Serialize};

#[derive(Serialize)]
struct Description<'a> {
    model_name: &'a str,
    sequence_id: String,
    /// Steps behind it.
    frames: u64,
    /// Requests that wait for it.
    waiting: usize,
    /// Since it was last stepped, or asked for here.
    idle_ms: u64,
    /// Steps behind its snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_frames: Option<u64>,
}

/// What is to be made of a sequence.
#[derive(Deserialize, Default)]
pub(super) struct Fork {
    /// The id of the new one.
    #[serde(default)]
    sequence_id: Option<NewId>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NewId {
    Number(u64),
    Text(String),
}

/// The sequence of a page, which belongs to whoever asks for it.
pub(super) fn name(principal: &Principal, text: &str) -> Result<Name, Fault> {
    let id = SequenceId::text(text)?;
    let id = id.ok_or_else(|| Fault::input("sequence_id: expected one of a sequence, found 0 or an empty text"))?;
    Ok(Name::new(principal, &id))
}

/// A sequence that is there: 404 where it is not.
async fn found(model: &Model, id: &Name) -> Result<Lease, Fault> {
    let lease = model.sequences.lease(model.current(), id, Begin::GoOn, None).await;
    lease.map_err(|fault| match fault.kind {
        Kind::Input => Fault::new(Kind::NotFound, format!("model '{}' has no sequence {id}", model.name)),
        _ => fault,
    })
}

pub(super) async fn get(model: &Model, id: &Name) -> Result<Answer, Fault> {
    let mut lease = found(model, id).await?;
    let idle_ms = lease.idle().as_millis() as u64;
    let frames = lease.frames()?;
    let (sequence_id, waiting, snapshot_frames) = (id.to_string(), lease.waiting(), lease.saved());
    let description = Description { model_name: &model.name, sequence_id, frames, waiting, idle_ms, snapshot_frames };
    Ok(reply::json(&description))
}

pub(super) async fn delete(model: &Model, id: &Name) -> Result<Answer, Fault> {
    let mut lease = found(model, id).await?;
    lease.forget_snapshot().await?;
    lease.end();
    Ok(reply::empty())
}

/// The state as a safetensors file, tensors of one row.
pub(super) async fn save(model: &Model, id: &Name) -> Result<Answer, Fault> {
    let mut lease = found(model, id).await?;
    let saved = lease.work(|session| {
        let state = session.save()?;
        let bytes = safetensors::serialize(state.iter(), None);
        Ok::<_, EngineError>(bytes.map_err(|e| Error::from(candle_core::Error::from(e)))?)
    });
    Ok(reply::bytes(saved.await??, "application/octet-stream"))
}

/// Goes on from such a state, in a sequence that is there or a new one.
pub(super) async fn restore(model: &Model, id: &Name, body: Bytes) -> Result<Answer, Fault> {
    let mut lease = model.sequences.lease(model.current(), id, Begin::Open, None).await?;
    let restored = lease.work(move |session| {
        let damaged = |e| Fault::input(format!("the body is no safetensors file: {e}"));
        let state: NamedTensors = load_buffer(&body, &Device::Cpu).map_err(damaged)?.into_iter().collect();
        session.restore(&state).map_err(Fault::from)
    });
    restored.await??;
    lease.forget_frames();
    lease.forget_snapshot().await?;
    lease.keep_step().await?;
    lease.keep();
    Ok(reply::empty())
}

/// A second sequence with the same state.
pub(super) async fn fork(model: &Model, principal: &Principal, id: &Name, Fork { sequence_id }: Fork) -> Result<Answer, Fault> {
    let new = match sequence_id {
        Some(NewId::Number(number)) => SequenceId::number(number),
        Some(NewId::Text(text)) => SequenceId::text(&text)?,
        None => None,
    };
    let new = new.ok_or_else(|| Fault::input("sequence_id: expected the id of the new sequence, found none"))?;
    let mut lease = found(model, id).await?;
    let forked = lease.work(|session| session.fork()).await??;
    model.sequences.adopt(&Name::new(principal, &new), (forked, &lease)).await?;
    Ok(reply::empty())
}
