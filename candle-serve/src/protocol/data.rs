//! Values of tensors from JSON.

use crate::fault::{Fault, one_line};
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;

/// What a JSON array can hold.
pub trait Value: Sized {
    /// In words.
    const EXPECTED: &'static str;

    /// Of a number without a fraction, if it can be one.
    fn integer(value: i128) -> Option<Self>;

    /// Of a number with a fraction, if it can be one.
    fn float(_: f64) -> Option<Self> {
        None
    }

    /// Of true or false, if it can be one.
    fn boolean(_: bool) -> Option<Self> {
        None
    }

    /// Of a text, if it can be one.
    fn text(_: &str) -> Option<Self> {
        None
    }
}

impl Value for f32 {
    const EXPECTED: &'static str = "numbers that 32-bit floats hold";

    fn integer(value: i128) -> Option<Self> {
        Some(value as Self)
    }

    fn float(value: f64) -> Option<Self> {
        // What is written as a 32-bit float is read as that: rounding to 64 bits first does not move it to a neighbour.
        Some(value as Self).filter(|float| float.is_finite())
    }
}

impl Value for u32 {
    const EXPECTED: &'static str = "integers from 0 to 2^32 - 1";

    fn integer(value: i128) -> Option<Self> {
        Self::try_from(value).ok()
    }
}

impl Value for u64 {
    const EXPECTED: &'static str = "integers from 0 to 2^64 - 1";

    fn integer(value: i128) -> Option<Self> {
        Self::try_from(value).ok()
    }
}

impl Value for bool {
    const EXPECTED: &'static str = "true or false";

    fn integer(_: i128) -> Option<Self> {
        None
    }

    fn boolean(value: bool) -> Option<Self> {
        Some(value)
    }
}

impl Value for String {
    const EXPECTED: &'static str = "texts";

    fn integer(_: i128) -> Option<Self> {
        None
    }

    fn text(value: &str) -> Option<Self> {
        Some(value.to_owned())
    }
}

/// The values of a JSON array, flat or nested, of which there must be `count`.
///
/// ```
/// use candle_serve::protocol::data::values;
///
/// assert_eq!(values::<u32>("ids", b"[[1, 2], [3, 4]]", 4)?, [1, 2, 3, 4]);
/// let wrong = values::<u32>("ids", b"[1, -2]", 2).unwrap_err();
/// assert_eq!(wrong.message, "tensor ids: expected integers from 0 to 2^32 - 1, found -2 at index 1");
/// # Ok::<(), candle_serve::Fault>(())
/// ```
///
/// # Errors
/// If it is no array, holds something else, or another number of values.
pub fn values<T: Value>(tensor: &str, json: &[u8], count: usize) -> Result<Vec<T>, Fault> {
    if json.first() != Some(&b'[') {
        return Err(Fault::tensor(tensor, "an array in data", one_line(&String::from_utf8_lossy(&json[..json.len().min(100)]))));
    }
    // A value takes two bytes of text at least: what a request claims takes no memory that it has not sent.
    let mut values = Vec::with_capacity(count.min(json.len() / 2 + 1));
    let mut reader = serde_json::Deserializer::from_slice(json);
    let read = Flat { values: &mut values, count }.deserialize(&mut reader);
    read.map_err(|e| {
        let text = e.to_string();
        // Where in the data's own text is nothing to a reader of the whole.
        let text = text.rsplit_once(" at line ").map_or(&*text, |(text, _)| text);
        Fault::input(format!("tensor {}: {text}", one_line(tensor)))
    })?;
    if values.len() != count {
        return Err(Fault::tensor(tensor, format!("{count} values"), values.len()));
    }
    Ok(values)
}

struct Flat<'v, T> {
    values: &'v mut Vec<T>,
    count: usize,
}

impl<T: Value> Flat<'_, T> {
    fn push<E: Error>(self, value: Option<T>, found: impl fmt::Display) -> Result<(), E> {
        let at = self.values.len();
        match value {
            Some(_) if at == self.count => Err(E::custom(format!("expected {} values, found more", self.count))),
            Some(value) => {
                self.values.push(value);
                Ok(())
            }
            None => Err(E::custom(format!("expected {}, found {found} at index {at}", T::EXPECTED))),
        }
    }
}

impl<'de, T: Value> DeserializeSeed<'de> for Flat<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Value> Visitor<'de> for Flat<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Flat { values, count } = self;
        while items.next_element_seed(Flat { values: &mut *values, count })?.is_some() {}
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.push(T::integer(value.into()), value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.push(T::integer(value.into()), value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.push(T::float(value), format_args!("{value:?}"))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.push(T::boolean(value), value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.push(T::text(value), format_args!("{:?}", one_line(value)))
    }
}

/// The texts of a binary tensor, each behind its length in four bytes.
///
/// # Errors
/// If they are not `count`, or one is no UTF-8.
pub fn raw_texts(tensor: &str, mut bytes: &[u8], count: usize) -> Result<Vec<String>, Fault> {
    let mut texts = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((text, rest)) = rest.split_at_checked(length) else {
            return Err(Fault::tensor(tensor, format!("a text of {length} bytes"), rest.len()));
        };
        let text = std::str::from_utf8(text).map_err(|_| Fault::tensor(tensor, "texts in UTF-8", "other bytes"))?;
        texts.push(text.to_owned());
        bytes = rest;
    }
    if texts.len() != count || !bytes.is_empty() {
        let found = format!("{} and {} bytes more", texts.len(), bytes.len());
        return Err(Fault::tensor(tensor, format!("{count} texts behind their lengths"), found));
    }
    Ok(texts)
}
