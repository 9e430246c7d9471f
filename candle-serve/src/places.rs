//! Where bundles lie, and what they are called.

use crate::fault::one_line;
use candle_models::bundle::CONFIG;
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Longest name of a model.
pub(crate) const NAME_LIMIT: usize = 128;
/// Folders that are looked into.
const MOST: usize = 4096;
/// How deep they may lie below the repository's.
const DEPTH: usize = 8;

/// Names of models: letters, digits, `_`, `-` and, behind the first place, `.`.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    name.len() <= NAME_LIMIT && name.starts_with(plain) && name.chars().all(|c| plain(c) || c == '.')
}

pub(crate) fn wrong_name(name: &str) -> String {
    format!("expected a name of at most {NAME_LIMIT} letters, digits, '_', '-' and '.', found {}", one_line(name))
}

/// Where bundles lie.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// Below a folder, each in one of its own.
    Folder(PathBuf),
    /// The folder is a bundle itself.
    Bundle { name: String, path: PathBuf },
}

/// Bundles by their names, each with its folder; or why there is none of that name.
pub(crate) type Bundles = BTreeMap<String, std::result::Result<PathBuf, String>>;

impl Place {
    /// The folder `path`. If it is a bundle, that is called `name`, or like the folder.
    ///
    /// # Errors
    /// If there is no folder, or a bundle's name is none for a model.
    pub fn open(path: &Path, name: Option<&str>) -> Result<Self> {
        let path = path.canonicalize().map_err(Error::io(path))?;
        if !path.is_dir() {
            return Err(Error::file(&path, "expected a folder of bundles, or a bundle"));
        }
        if path.join(CONFIG).is_file() {
            let folder = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.map(str::to_owned).or(folder).unwrap_or_default();
            return if is_name(&name) { Ok(Self::Bundle { name, path }) } else { Err(Error::config("model name", wrong_name(&name))) };
        }
        match name {
            Some(name) => Err(Error::config("model name", format!("{name} is for a single bundle, and {} is none", path.display()))),
            None => Ok(Self::Folder(path)),
        }
    }

    /// The bundles that lie there now. One is called like the folders on its way, with points between them. What lies in a bundle's own
    /// folder, or in one whose name begins with a point, is none; links are followed within the repository alone.
    ///
    /// # Errors
    /// If the repository's folder cannot be read.
    pub fn bundles(&self) -> Result<Bundles> {
        match self {
            Self::Bundle { name, path } => Ok([(name.clone(), Ok(path.clone()))].into()),
            Self::Folder(root) => {
                let entries = std::fs::read_dir(root).map_err(Error::io(root))?;
                let mut walk = Walk { root, looked: 0, found: Bundles::new() };
                walk.folder(entries, "", root, 1);
                Ok(walk.found)
            }
        }
    }
}

struct Walk<'a> {
    root: &'a Path,
    looked: usize,
    found: Bundles,
}

impl Walk<'_> {
    /// Looks through a folder. `above` is the beginning of the names in it, and `real` its place whatever links have led there.
    fn folder(&mut self, entries: std::fs::ReadDir, above: &str, real: &Path, depth: usize) {
        // In one order on every machine, so that the same folders are left out where there are too many.
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        for folder in names {
            let text = folder.to_string_lossy();
            // What is no folder, or is a link to nowhere, is no bundle.
            let Some(path) = real.join(&folder).canonicalize().ok().filter(|path| path.is_dir() && !text.starts_with('.')) else {
                continue;
            };
            if self.looked == MOST {
                return;
            }
            self.looked += 1;
            let name = format!("{above}{text}");
            let inside = path.starts_with(self.root);
            if path.join(CONFIG).is_file() {
                let bundle = if inside { Ok(path) } else { Err("its folder is a link out of the repository".to_owned()) };
                self.add(name, bundle);
            } else if inside && depth < DEPTH && !real.starts_with(&path) {
                // One that cannot be read has no bundles for this server.
                let Ok(entries) = std::fs::read_dir(&path) else { continue };
                self.folder(entries, &format!("{name}."), &path, depth + 1);
            }
        }
    }

    fn add(&mut self, name: String, bundle: std::result::Result<PathBuf, String>) {
        let bundle = if is_name(&name) { bundle } else { Err(wrong_name(&name)) };
        let twice = || Err("two folders have this name, as a point stands for the way between folders: rename one".to_owned());
        self.found.entry(name).and_modify(|found| *found = twice()).or_insert(bundle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_leave_no_way_out_of_the_folder() {
        for name in ["policy-mlp", "m", "0", "_", "-x", "a.b", "A_1.2-3"] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(NAME_LIMIT + 1);
        for name in ["", ".", "..", ".hidden", "a/b", "a\\b", "../x", "a b", "a\0", "ä", "%2e%2e", &long] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn bundles_are_found_as_deep_as_the_limit_and_not_in_circles() -> Result<()> {
        let folder = tempfile::tempdir().map_err(Error::io(""))?;
        let bundle = |path: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(&path).and_then(|()| std::fs::write(path.join(CONFIG), "{}")).map_err(Error::io(path))
        };
        for path in ["a/b", "a/b/inside", "a/.hidden/c", "1/2/3/4/5/6/7/8", "1/2/3/4/5/6/7/no/9", "x.y", "x/y"] {
            bundle(path)?;
        }
        #[cfg(unix)]
        for (to, from) in [("..", "a/up"), (".", "a/self"), ("a", "again"), ("nowhere", "lost"), ("/", "out")] {
            std::os::unix::fs::symlink(to, folder.path().join(from)).map_err(Error::io(from))?;
        }
        let found = Place::open(folder.path(), None)?.bundles()?;
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["1.2.3.4.5.6.7.8", "a.b", "again.b", "x.y"]);
        assert!(found["x.y"].as_ref().is_err_and(|reason| reason.starts_with("two folders have this name")));
        assert_eq!(found["again.b"], found["a.b"], "a link within the repository is another name");
        Ok(())
    }
}
