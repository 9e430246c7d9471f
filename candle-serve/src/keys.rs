//! Keys of clients: who one is, and what it may do. Whatever the protocol, a key comes as `Bearer KEY` under the name `authorization`.
//!
//! The server knows the hashes of keys only. A key is 256 random bits ([`create`]), so that its hash need not be slow to compute.

use crate::fault::{Fault, Kind, one_line};
use candle_models::{Error, Result, hex};
use clap::ValueEnum;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Longest name of a principal.
const NAME_LIMIT: usize = 64;

/// What a key is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Inferences, sequences and what models say of themselves.
    Infer,
    /// All of that, and what concerns every client: loading and unloading models, shared memory, the log and traces.
    Admin,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Infer => "infer",
            Self::Admin => "admin",
        })
    }
}

/// Who asks, by the name of its key; nobody in particular where the server asks for no keys.
pub(crate) type Principal = Option<Arc<str>>;

/// A line of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    role: Role,
    sha256: String,
}

struct Key {
    name: Arc<str>,
    role: Role,
    hash: [u8; 32],
}

/// The keys that a server knows.
pub(crate) struct Keys(Vec<Key>);

impl Keys {
    /// Reads a file: an object of JSON in each line that is not empty, as [`create`] makes them. Several keys may have one name.
    ///
    /// # Errors
    /// With the file and the line, if it is none, or has a hash twice.
    pub fn open(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        let mut keys: Vec<Key> = Vec::new();
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let key = Key::parse(line).map_err(|reason| Error::file(path, format!("line {number}: {reason}")))?;
            if keys.iter().any(|known| known.hash == key.hash) {
                return Err(Error::file(path, format!("line {number}: expected another hash than those before it")));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(Error::file(path, "expected at least one key, found none"));
        }
        Ok(Self(keys))
    }

    /// Who has this authorization, if it is good for `needed`.
    pub fn check(&self, authorization: Option<&[u8]>, needed: Role) -> std::result::Result<Arc<str>, Fault> {
        let missing = || Fault::new(Kind::Unauthenticated, "expected a key: Authorization: Bearer KEY");
        let (scheme, token) = authorization.and_then(|text| text.split_at_checked(7)).ok_or_else(missing)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Err(missing());
        }
        let hash = Sha256::digest(token.trim_ascii());
        // All of them are looked at, and each to its end, so that the time tells nothing about any.
        let found = self.0.iter().fold(None, |found, key| if bool::from(key.hash.ct_eq(&hash)) { Some(key) } else { found });
        let key = found.ok_or_else(|| Fault::new(Kind::Unauthenticated, "the key is not known"))?;
        if key.role < needed {
            let reason = format!("the key of {} is for {}: expected one for {needed}", key.name, key.role);
            return Err(Fault::new(Kind::Forbidden, reason));
        }
        Ok(key.name.clone())
    }
}

impl Key {
    /// A message never has the line itself: what stands where the hash should may be a key.
    fn parse(line: &str) -> std::result::Result<Self, String> {
        let expected = r#"expected {"name": NAME, "role": "infer" or "admin", "sha256": 64 hexadecimal digits}"#;
        let Line { name, role, sha256 } = serde_json::from_str(line).map_err(|_| expected.to_owned())?;
        if !is_name(&name) {
            return Err(wrong_name(&name));
        }
        Ok(Self { name: name.into(), role, hash: bytes(&sha256).ok_or_else(|| expected.to_owned())? })
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_LIMIT).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

fn wrong_name(name: &str) -> String {
    format!("name: expected at most {NAME_LIMIT} letters, digits, '_', '-' and '.', found {}", one_line(name))
}

fn bytes(hex: &str) -> Option<[u8; 32]> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let pairs = hex.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some((digit(*high)? << 4 | digit(*low)?) as u8),
        _ => None,
    });
    pairs.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// Makes a key for a name: the key, which nobody has seen, and the line that makes a server know it.
///
/// # Errors
/// If the name is none, or the machine has no random bits.
pub fn create(name: &str, role: Role) -> std::result::Result<(String, String), String> {
    if !is_name(name) {
        return Err(wrong_name(name));
    }
    let mut random = [0; 32];
    let source = rustls::crypto::ring::default_provider().secure_random;
    source.fill(&mut random).map_err(|_| "the machine gives no random bits".to_owned())?;
    let key = format!("candle_{}", hex(random));
    let line = serde_json::json!({"name": name, "role": role.to_string(), "sha256": hex(Sha256::digest(&key))});
    Ok((key, line.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str) -> std::result::Result<Keys, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let path = folder.path().join("keys");
        std::fs::write(&path, text).map_err(|e| e.to_string())?;
        Keys::open(&path).map_err(|e| e.to_string().rsplit_once("keys: ").map(|(_, reason)| reason.to_owned()).unwrap_or_default())
    }

    #[test]
    fn a_key_is_known_by_its_hash_and_good_for_its_role() -> std::result::Result<(), String> {
        let ((agent, first), (admin, second)) = (create("agent", Role::Infer)?, create("admin", Role::Admin)?);
        assert_ne!(agent, create("agent", Role::Infer)?.0);
        assert!(!first.contains(&agent) && !second.contains(&admin));
        let keys = open(&format!("{first}\n\n{second}\n"))?;
        let check = |text: &str, role| keys.check(Some(text.as_bytes()), role).map_err(|fault| fault.kind);
        let bearer = |key: &str| format!("Bearer {key}");
        assert_eq!(check(&bearer(&agent), Role::Infer), Ok("agent".into()));
        assert_eq!(check(&bearer(&agent), Role::Admin), Err(Kind::Forbidden));
        assert_eq!(check(&bearer(&admin), Role::Infer), Ok("admin".into()));
        assert_eq!(check(&format!("bEARER  {admin} "), Role::Admin), Ok("admin".into()));
        let other = bearer(&agent[..agent.len() - 1]);
        for wrong in ["", "Bearer", "Bearer ", "Basic eDp4", &agent, &other, "Bearer ä"] {
            assert_eq!(check(wrong, Role::Infer), Err(Kind::Unauthenticated), "{wrong}");
        }
        // A hash is no key.
        let hash = hex(keys.0[1].hash);
        assert_eq!(check(&bearer(&hash), Role::Infer), Err(Kind::Unauthenticated));
        assert_eq!(keys.check(None, Role::Infer).map_err(|fault| fault.kind), Err(Kind::Unauthenticated));
        Ok(())
    }

    #[test]
    fn a_file_that_is_wrong_is_told_without_what_it_holds() -> std::result::Result<(), String> {
        let (secret, line) = create("agent", Role::Infer)?;
        for (text, reason) in [
            (String::new(), "expected at least one key, found none"),
            (format!("\n{secret}"), "line 2: expected {"),
            (line.replace("infer", "root"), "line 1: expected {"),
            (line.replace("sha256\":\"", "sha256\":\"0"), "line 1: expected {"),
            (line.replace("agent", "a b"), "line 1: name: expected at most 64 letters"),
            (line.replace("\"name\"", "\"more\":1,\"name\""), "line 1: expected {"),
            (format!("{line}\n{}", line.replace("agent", "other")), "line 2: expected another hash"),
            (format!(r#"{{"name": "agent", "role": "infer", "sha256": "{secret}"}}"#), "line 1: expected {"),
        ] {
            let found = open(&text).err().unwrap_or_default();
            assert!(found.starts_with(reason) && !found.contains(&secret), "{found}");
        }
        Ok(())
    }
}
