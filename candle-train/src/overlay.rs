//! A configuration in three layers: a preset, over it a TOML file, over that single keys as `a.b=c`.
//!
//! ```
//! use candle_train::overlay;
//! use candle_train::schedule::Schedule;
//! # fn main() -> candle_models::Result<()> {
//! let sets = ["peak=0.01".to_owned()];
//! let schedule = overlay::resolve(&Schedule::default(), Some("warmup = 10"), &sets, &overlay::kind_alone)?;
//! assert_eq!((schedule.peak, schedule.warmup), (0.01, 10));
//! let refused = overlay::resolve(&Schedule::default(), Some("warm = 10"), &[], &overlay::kind_alone).unwrap_err();
//! assert!(refused.to_string().contains("warm: no such key"), "{refused}");
//! # Ok(())
//! # }
//! ```

use candle_models::nn::BackboneConfig;
use candle_models::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// What the keys of a table with a `kind` become when another kind is asked for: its usual keys, or the kind alone where the
/// configuration itself knows what is usual.
pub type Usual<'a> = &'a dyn Fn(&str) -> Result<Table>;

/// The [`Usual`] of a configuration that itself knows what is usual. It never fails.
pub fn kind_alone(kind: &str) -> Result<Table> {
    Ok(Table::from_iter([("kind".to_owned(), Value::String(kind.to_owned()))]))
}

/// The [`Usual`] of a configuration with a backbone: one of another kind has its usual sizes.
///
/// # Errors
/// If there is no such kind.
pub fn usual_backbone(kind: &str) -> Result<Table> {
    let named = BackboneConfig::named(kind);
    let named =
        named.ok_or_else(|| Error::config("kind", format!("expected one of {}, found '{kind}'", BackboneConfig::KINDS.join(", "))))?;
    Table::try_from(named).map_err(|e| Error::config("kind", e))
}

/// `preset`, with the keys of `file` (TOML) and then those of `sets` (`a.b=c`) in place of its own.
///
/// # Errors
/// If a key is unknown or a value has the wrong type; the key is named.
pub fn resolve<T: Serialize + DeserializeOwned>(preset: &T, file: Option<&str>, sets: &[String], usual: Usual) -> Result<T> {
    let mut table = Table::try_from(preset).map_err(|e| Error::config("preset", e))?;
    let mut merge = Merge { usual, unknown: None };
    if let Some(text) = file {
        let overlay: Table = toml::from_str(text).map_err(|e| Error::config("file", one_line(&e.to_string())))?;
        merge.lay(&mut table, overlay, "")?;
    }
    for set in sets {
        merge.lay(&mut table, parse(set)?, "")?;
    }
    let resolved = Value::Table(table).try_into();
    // A key that the preset lacks may be one that can be left out, which only the configuration's type knows.
    resolved.map_err(|e: toml::de::Error| match merge.unknown {
        Some((place, known)) => Error::config(place, format!("no such key (there are {known})")),
        None => Error::config("value", one_line(&e.to_string())),
    })
}

/// Refuses counts that are not from 1 to the most that each field may have, by the name of the field.
///
/// # Errors
/// If there is one.
pub fn check_counts(counts: &[(&str, u64, u64)]) -> Result<()> {
    match counts.iter().find(|(_, n, most)| !(1..=*most).contains(n)) {
        Some((field, n, most)) => Err(Error::config(*field, format!("expected 1 to {most}, found {n}"))),
        None => Ok(()),
    }
}

/// A configuration as it is printed and saved.
///
/// # Errors
/// If it has no form in TOML.
pub fn to_toml(config: &impl Serialize) -> Result<String> {
    toml::to_string(config).map_err(|e| Error::config("value", e))
}

struct Merge<'a> {
    usual: Usual<'a>,
    /// The first key that the table did not have, and those that it had.
    unknown: Option<(String, String)>,
}

impl Merge<'_> {
    /// Lays `overlay` over `base`.
    fn lay(&mut self, base: &mut Table, overlay: Table, path: &str) -> Result<()> {
        let fresh = match overlay.get("kind") {
            Some(Value::String(kind)) => self.change_kind(base, kind, path)?,
            _ => false,
        };
        for (key, value) in overlay {
            let place = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let known: Vec<&str> = base.keys().map(String::as_str).collect();
            let known = known.join(", ");
            match (base.get_mut(&key), value) {
                (None, value) => {
                    if !fresh {
                        self.unknown.get_or_insert((place, known));
                    }
                    base.insert(key, value);
                }
                (Some(Value::Table(inner)), Value::Table(value)) => self.lay(inner, value, &place)?,
                // A number without a point is a float where one is asked for.
                (Some(Value::Float(slot)), Value::Integer(value)) => *slot = value as f64,
                (Some(slot), value) if slot.same_type(&value) => *slot = value,
                (Some(slot), value) => {
                    return Err(Error::config(&place, format!("expected {}, found {} {value}", slot.type_str(), value.type_str())));
                }
            }
        }
        Ok(())
    }

    /// Another kind has other keys: its usual ones take the place of the old ones. Whether the kind was another.
    fn change_kind(&self, base: &mut Table, kind: &str, path: &str) -> Result<bool> {
        if base.get("kind").and_then(Value::as_str) == Some(kind) {
            return Ok(false);
        }
        *base = (self.usual)(kind).map_err(|error| match error {
            Error::Config { field, reason } => Error::config(format!("{path}.{field}"), reason),
            other => other,
        })?;
        Ok(true)
    }
}

/// `a.b=c` as a table. What is not a TOML value counts as text, so that `heads=independent` needs no quotes.
fn parse(set: &str) -> Result<Table> {
    let (key, value) = set.split_once('=').ok_or_else(|| Error::config(set, "expected key=value"))?;
    let (key, value) = (key.trim(), value.trim());
    let parsed = toml::from_str::<Table>(&format!("v = {value}")).ok().and_then(|mut t| t.remove("v"));
    let mut value = parsed.unwrap_or_else(|| Value::String(value.to_owned()));
    let mut parts = key.rsplit('.').peekable();
    while let Some(part) = parts.next() {
        let table = Table::from_iter([(part.to_owned(), value)]);
        if parts.peek().is_none() {
            return Ok(table);
        }
        value = Value::Table(table);
    }
    Err(Error::config(set, "expected key=value"))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
