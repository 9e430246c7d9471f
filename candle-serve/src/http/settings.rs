//! Pages of settings that can be changed at run time.

use super::reply::{self, Answer};
use crate::fault::Fault;
use crate::log::{Log, LogChange};

/// What is logged, after a change where there is one.
pub(super) fn log(log: &Log, change: Option<LogChange>) -> Result<Answer, Fault> {
    change.map_or(Ok(()), |change| log.change(&change))?;
    Ok(reply::json(&log.settings()))
}
