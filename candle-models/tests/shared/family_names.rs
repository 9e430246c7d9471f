//! Where a crate's sources name families, for the tests of each crate that has some: outside their folders it should know none.

use std::fs;
use std::path::{Path, PathBuf};

/// Asserts that no file below the folder `source` has one of these words in it, in lower case or not, alone or in a longer word (`BeamConfig`,
/// `beams`), but for those below `source`/`families`, programs in the documentation, and `elsewhere`: paths below `source`, each with the
/// line that may stand there, or with nothing where the whole file may name them. An exception that is not needed is an error, too.
pub fn assert_known_in_their_folders_only(source: &Path, families: &str, words: &[&str], elsewhere: &[(&str, &str)]) {
    let families = source.join(families);
    let (own, others): (Vec<_>, Vec<_>) = files(source).into_iter().partition(|file| file.starts_with(&families));
    let names = |line: &str| words.iter().any(|word| line.to_lowercase().contains(word));
    let read = |file: &PathBuf| fs::read_to_string(file).unwrap();
    assert!(own.iter().any(|file| read(file).lines().any(names)), "{}: no family is named here", families.display());
    let (mut found, mut needed) = (Vec::new(), vec![false; elsewhere.len()]);
    for file in &others {
        let path = file.strip_prefix(source).unwrap().to_str().unwrap().replace('\\', "/");
        let mut documented = false;
        for (number, line) in read(file).lines().enumerate() {
            // Programs in the documentation open bundles that are shipped.
            let comment = line.trim_start().strip_prefix("//!").or_else(|| line.trim_start().strip_prefix("///"));
            documented ^= comment.is_some_and(|text| text.trim_start().starts_with("```"));
            if !names(line) || documented && comment.is_some() {
                continue;
            }
            match elsewhere.iter().position(|(place, text)| *place == path && (text.is_empty() || line == *text)) {
                Some(exception) => needed[exception] = true,
                None => found.push(format!("{path}:{}: {}", number + 1, line.trim())),
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    let spare = elsewhere.iter().zip(needed).find(|(_, needed)| !needed);
    assert!(spare.is_none(), "an exception that nothing needs: {spare:?}");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|entry| if entry.is_dir() { files(&entry) } else { vec![entry] }).collect()
}
