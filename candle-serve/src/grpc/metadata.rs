//! What a call says beside its message.

use crate::fault::{Fault, one_line};
use crate::protocol::request::SequenceId;
use std::time::Duration;
use tonic::metadata::MetadataMap;

/// What an inference is told beside its message.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// How long the client waits from now on.
    pub limit: Option<Duration>,
    /// The sequence, where balancers see it.
    pub sequence: Option<SequenceId>,
}

impl Beside {
    /// Of a call with one message.
    pub fn of(metadata: &MetadataMap) -> Result<Self, Fault> {
        let sequence = match metadata.get("x-sequence-id").map(|value| std::str::from_utf8(value.as_bytes())) {
            Some(Ok(text)) => SequenceId::text(text.trim())?,
            Some(Err(_)) => return Err(Fault::input("x-sequence-id: expected a text in UTF-8, found other bytes")),
            None => None,
        };
        Ok(Self { limit: timeout(metadata)?, sequence })
    }
}

/// How long the client waits from now on, if it says so. It is read here because a library that ends a call itself says that the call was
/// cancelled.
pub(super) fn timeout(metadata: &MetadataMap) -> Result<Option<Duration>, Fault> {
    let Some(value) = metadata.get("grpc-timeout") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let wrong = || Fault::input(format!("grpc-timeout: expected up to 8 digits and one of H, M, S, m, u, n, found {}", one_line(text)));
    parse(text).map(Some).ok_or_else(wrong)
}

fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let known = (1..=8).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
    let number: u64 = known.then(|| digits.parse().ok()).flatten()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read_and_nothing_else() {
        let read = |text| parse(text).map(|time| time.as_nanos());
        assert_eq!(read("2H"), Some(7_200_000_000_000));
        assert_eq!(read("3M"), Some(180_000_000_000));
        assert_eq!(read("99999999S"), Some(99_999_999_000_000_000));
        assert_eq!((read("5m"), read("6u"), read("0n")), (Some(5_000_000), Some(6_000), Some(0)));
        for text in ["", "S", "5", "5s", "-1S", "+1S", "1 S", "123456789S", "1.5S", "5ä"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
