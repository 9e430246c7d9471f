//! Pages of shared memory.

use super::reply::{self, Answer};
use crate::fault::Fault;
use crate::shared_memory::{Description, Regions};
use serde::Deserialize;

/// What a region is to be of.
#[derive(Deserialize)]
pub(super) struct Registration {
    key: String,
    #[serde(default)]
    offset: u64,
    byte_size: u64,
}

pub(super) fn status(regions: &Regions, name: Option<&str>) -> Result<Answer, Fault> {
    Ok(reply::json(&regions.status(name)?))
}

pub(super) fn register(regions: &Regions, name: &str, Registration { key, offset, byte_size }: Registration) -> Result<Answer, Fault> {
    regions.register(Description { name: name.to_owned(), key, offset, byte_size }).map(|()| reply::empty())
}

pub(super) fn unregister(regions: &Regions, name: Option<&str>) -> Result<Answer, Fault> {
    regions.unregister(name).map(|()| reply::empty())
}
