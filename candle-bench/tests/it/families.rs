//! What holds for every family that the benchmark knows, and that it knows them by their traits alone.

use candle_bench::families;
use candle_bench::run::suites;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn suites_of_families_stand_among_the_others_in_the_order_of_a_page() {
    let names: Vec<_> = suites(&families::shipped()).iter().map(|entry| entry.name).collect();
    let expected =
        "targets latency batch-size graph precision startup roofline load peers train overlap memory scaling training beam gpu ops steps";
    assert_eq!(names, expected.split(' ').collect::<Vec<_>>());
    for entry in suites(&families::shipped()) {
        let command = (entry.command)(&families::shipped());
        assert!(command.get_name() == entry.name && command.get_about().is_some(), "{}", entry.name);
    }
}

#[test]
fn what_families_ship_is_there_and_is_theirs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for family in families::shipped().iter() {
        for bundle in family.shipped() {
            let opened = candle_models::bundle::Bundle::open(root.join(bundle)).unwrap();
            assert_eq!(opened.manifest().family, family.name(), "{bundle}");
        }
        let tables: BTreeSet<_> = family.tables().iter().map(|table| table.suite).collect();
        let suites: BTreeSet<_> = family.suites().iter().map(|entry| entry.name).collect();
        assert!(tables.is_subset(&suites), "{}: tables of {tables:?}", family.name());
    }
}

/// Where the names of families may stand outside their folders, and why.
const ELSEWHERE: [(&str, &str); 1] = [
    // The name of a header of HTTP.
    ("report/mod.rs", "Content-Security-Policy"),
];

#[test]
fn families_are_known_by_name_in_their_folders_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![source.clone()];
    let (mut files, mut found): (Vec<PathBuf>, _) = (Vec::new(), Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.is_dir() {
                true if entry == source.join("families") => {}
                true => folders.push(entry),
                false => files.push(entry),
            }
        }
    }
    assert!(files.len() > 60, "{} files", files.len());
    for file in files {
        let name = file.strip_prefix(&source).unwrap().to_str().unwrap().replace('\\', "/");
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let allowed = ELSEWHERE.iter().any(|(path, text)| *path == name && line.contains(text));
            let lower = line.to_lowercase();
            if !allowed && ["policy", "policies", "beam"].iter().any(|word| lower.contains(word)) {
                found.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
