//! A bundle from any checkpoint of a run, whatever became of the run.
//!
//! From its first step a run's directory holds in `model` what its bundle will hold beside the parameters ([`Skeleton`]).
//!
//! ```
//! use candle_models::families;
//! use candle_train::checkpoint::Which;
//! use candle_train::export::export;
//! use std::path::Path;
//!
//! let refused = export(&families::shipped(), Path::new("src"), Which::Latest, Path::new("bundle")).unwrap_err();
//! assert_eq!(refused.to_string(), "src: expected the directory of a run with its model, found none");
//! ```

use crate::checkpoint::{self, Checkpoint, Which};
use candle_models::bundle::{self, Bundle, CARD, Manifest};
use candle_models::registry::{Family, Registry};
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// What every card says of its networks.
pub(crate) const EQUATIONS: &str = "`candle-infer inspect --forward` prints the networks as equations with the names of their parameters, \
     `candle-infer onnx` writes them as ONNX.\n";

/// Where a run keeps its skeleton.
const MODEL: &str = "model";

/// A bundle without its parameters and its card.
#[derive(Debug, Clone)]
pub struct Skeleton {
    /// Family and architecture.
    pub manifest: Manifest,
    /// The files of the family, by name.
    pub files: Vec<(&'static str, Vec<u8>)>,
}

impl Skeleton {
    /// Writes it into the directory of a run.
    pub(crate) fn save(&self, run: &Path) -> Result<()> {
        bundle::save(run.join(MODEL), &self.manifest, &BTreeMap::new(), serde_json::Value::Null, &self.files)
    }
}

/// Makes a bundle of a checkpoint: the moving average of the parameters, as a finished run ships it. Gives the checkpoint's step. The run may
/// be going on meanwhile.
///
/// # Errors
/// If the directory holds no run or no such checkpoint, if that is not of the run's model, or if the bundle cannot be written.
pub fn export<F: Family + ?Sized>(families: &Registry<F>, run: &Path, which: Which, out: &Path) -> Result<u64> {
    let model = run.join(MODEL);
    if !model.is_dir() {
        return Err(Error::file(run, format!("expected the directory of a run with its {MODEL}, found none")));
    }
    let skeleton = Bundle::open(&model)?;
    let family = families.family(&skeleton)?;
    let Checkpoint { step, tensors, score, .. } = checkpoint::read(&run.join("checkpoints"), which)?;
    let average =
        tensors.get(checkpoint::AVERAGE).ok_or_else(|| Error::file(run, format!("the checkpoint of step {step} has no parameters")))?;
    let specs = family.parameters(&skeleton)?;
    // What training needs beside the model, as a critic, is left behind.
    let own = average.iter().filter(|(name, _)| specs.iter().any(|spec| spec.name == *name));
    let parameters: BTreeMap<_, _> = own.map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
    for spec in specs {
        let found = parameters.get(&spec.name).map(|tensor| tensor.dims());
        if found != Some(&spec.shape[..]) {
            return Err(Error::tensor(&spec.name, format!("{:?} in the checkpoint of step {step}", spec.shape), format!("{found:?}")));
        }
    }
    let mut files = vec![(CARD, card(&family.describe(&skeleton)?, run, step, score)?.into_bytes())];
    for name in family.files() {
        files.extend(skeleton.read_file(name)?.map(|bytes| (*name, bytes)));
    }
    let metadata = serde_json::json!({ "steps": step, "trained_with": concat!("candle-train ", env!("CARGO_PKG_VERSION")) });
    bundle::save(out, skeleton.manifest(), &parameters, metadata, &files)?;
    Ok(step)
}

fn card(model: &str, run: &Path, step: u64, score: Option<f64>) -> Result<String> {
    let path = run.join("config.toml");
    let configuration = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let score = score.map_or("it had not been evaluated there".to_owned(), |cost| format!("its evaluation there had the cost {cost}"));
    Ok(format!("# {model}\n\nFrom the checkpoint of step {step} of its training run; {score}.\n\n```toml\n{configuration}```\n"))
}
