//! Archives: recordings in a tar file, each in a folder of its name.

use super::recording::Dataset;
use crate::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// The metadata's bytes and the place of the dataset of the recording `name`, or of the only one.
pub(super) fn find(path: &Path, name: Option<&str>) -> Result<(Vec<u8>, Option<Dataset>)> {
    let mut archive = tar::Archive::new(File::open(path).map_err(Error::io(path))?);
    let (mut metas, mut datasets) = (Vec::new(), Vec::new());
    for entry in archive.entries().map_err(Error::io(path))? {
        let mut entry = entry.map_err(|error| Error::file(path, format!("no tar archive, or it is cut off: {error}")))?;
        let inside = entry.path().map_err(Error::io(path))?.into_owned();
        let Some((stem, extension)) = parts(&inside) else { continue };
        match extension.as_str() {
            "sigmf-meta" if name.is_none_or(|name| name == stem) => {
                let mut json = Vec::new();
                entry.read_to_end(&mut json).map_err(Error::io(path))?;
                metas.push((stem, json));
            }
            "sigmf-data" => datasets.push((stem, entry.raw_file_position(), entry.size())),
            _ => {}
        }
    }
    if metas.len() > 1 {
        let names: Vec<&str> = metas.iter().map(|(stem, _)| stem.as_str()).collect();
        let one = path.join(names[0]);
        return Err(Error::file(path, format!("holds {} recordings ({}): name one, as {}", names.len(), names.join(", "), one.display())));
    }
    let wanted = || name.map_or_else(|| "no recording".to_owned(), |name| format!("no recording {name}"));
    let (stem, json) = metas.pop().ok_or_else(|| Error::file(path, format!("holds {}", wanted())))?;
    let found = datasets.into_iter().find(|(of, ..)| *of == stem);
    Ok((json, found.map(|(_, first, bytes)| Dataset { path: path.to_owned(), first, bytes })))
}

/// The recording's name and the ending of a file that belongs to one.
fn parts(path: &Path) -> Option<(String, String)> {
    let file = PathBuf::from(path.components().rfind(|part| matches!(part, Component::Normal(_)))?.as_os_str());
    Some((file.file_stem()?.to_str()?.to_owned(), file.extension()?.to_str()?.to_owned()))
}
