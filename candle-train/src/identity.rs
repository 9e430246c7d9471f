//! What a run is: the resolved configuration and the data, as JSON. A checkpoint belongs to one identity, and all ranks of a run
//! have the same.

use crate::parallel::{Communicator, gather};
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The first place where two JSON values differ.
///
/// ```
/// use candle_train::identity::difference;
/// use serde_json::json;
///
/// let (then, now) = (json!({ "trainer": { "accumulate": 1 } }), json!({ "trainer": { "accumulate": 4 } }));
/// let found = difference(&then, &now).expect("they differ");
/// assert_eq!((found.path.as_str(), &found.values[1]), ("trainer.accumulate", &json!(4)));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// `config.trainer.accumulate`.
    pub path: String,
    /// What each side has there; null for nothing.
    pub values: [Value; 2],
}

/// The first difference, in the order of keys.
pub fn difference(a: &Value, b: &Value) -> Option<Difference> {
    walk("", a, b)
}

fn walk(path: &str, a: &Value, b: &Value) -> Option<Difference> {
    if let (Some(a), Some(b)) = (a.as_object(), b.as_object()) {
        let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        return keys.into_iter().find_map(|key| {
            let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            walk(&inner, a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null))
        });
    }
    (a != b).then(|| Difference { path: path.to_owned(), values: [a.clone(), b.clone()] })
}

/// What a rank says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Statement {
    version: String,
    identity: Value,
}

/// Checks that all ranks run the same program on the same thing.
///
/// # Errors
/// On every rank alike, naming the first rank that differs from rank 0 and where.
pub fn agree(ranks: &dyn Communicator, identity: &Value) -> Result<()> {
    let mine = Statement { version: env!("CARGO_PKG_VERSION").to_owned(), identity: identity.clone() };
    let all = gather(ranks, &mine)?;
    let differs = |what: &str, rank: usize, [first, other]: [&dyn std::fmt::Display; 2]| {
        Error::Input(format!("rank {rank} cannot train with rank 0: {what}: {first} on rank 0, {other} on rank {rank}"))
    };
    for (rank, other) in all.iter().enumerate() {
        if other.version != all[0].version {
            return Err(differs("the version of candle-train", rank, [&all[0].version, &other.version]));
        }
        if let Some(Difference { path, values: [first, other] }) = difference(&all[0].identity, &other.identity) {
            return Err(differs(&path, rank, [&first, &other]));
        }
    }
    Ok(())
}

/// Checks that the replicas of a model are still equal: `checksum` of rank 0 is that of every rank.
///
/// # Errors
/// Naming the ranks that have drifted away.
pub fn check_replicas(ranks: &dyn Communicator, step: u64, checksum: u64) -> Result<()> {
    let all = gather(ranks, &checksum)?;
    let drifted: Vec<String> = (0..all.len()).filter(|&rank| all[rank] != all[0]).map(|rank| rank.to_string()).collect();
    if drifted.is_empty() {
        return Ok(());
    }
    Err(Error::Input(format!("after step {step} the parameters of rank {} are not those of rank 0 any more", drifted.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::{Single, threads};
    use serde_json::json;
    use std::time::Duration;

    fn on_two<T: Send>(f: impl Fn(&dyn Communicator) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let ranks = threads::group(2, Duration::from_secs(60));
            let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| f(&{ rank }))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn the_place_of_a_difference_is_named() {
        let (a, b) = (json!({"config": {"batch": 4, "seed": 1}}), json!({"config": {"batch": 4, "seed": 2}}));
        assert_eq!(difference(&a, &a), None);
        assert_eq!(difference(&a, &b), Some(Difference { path: "config.seed".into(), values: [json!(1), json!(2)] }));
        assert_eq!(difference(&a, &json!({})).unwrap().path, "config");
    }

    #[test]
    fn ranks_with_other_configurations_hear_where() {
        let errors = on_two(|ranks| agree(ranks, &json!({"config": {"seed": ranks.rank()}})).unwrap_err().to_string());
        assert_eq!(errors[0], "rank 1 cannot train with rank 0: config.seed: 0 on rank 0, 1 on rank 1");
        assert_eq!(errors[0], errors[1]);
        on_two(|ranks| agree(ranks, &json!(1)).unwrap());
        agree(&Single, &json!(1)).unwrap();
    }

    #[test]
    fn a_replica_that_drifted_is_named() {
        let errors = on_two(|ranks| check_replicas(ranks, 7, ranks.rank() as u64).unwrap_err().to_string());
        assert_eq!(errors[0], "after step 7 the parameters of rank 1 are not those of rank 0 any more");
        on_two(|ranks| check_replicas(ranks, 7, 5).unwrap());
    }
}
