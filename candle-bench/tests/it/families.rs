//! What holds for every family that the benchmark knows, and that it knows them by their traits alone.

use crate::family_names::assert_known_in_their_folders_only;
use candle_bench::families;
use candle_bench::run::suites;
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn suites_of_families_stand_among_the_others_in_the_order_of_a_page() {
    let names: Vec<_> = suites(&families::shipped()).iter().map(|entry| entry.name).collect();
    let expected = "targets serve latency batch-size graph precision startup roofline load peers train overlap memory scaling training beam fno gpu ops steps rf";
    assert_eq!(names, expected.split(' ').collect::<Vec<_>>());
    // Options of families take nothing from what a suite says of itself.
    let commands: Vec<_> = suites(&families::shipped()).iter().map(|entry| (entry.command)(&families::shipped())).collect();
    let abouts: BTreeSet<_> = commands.iter().map(|command| command.get_about().unwrap().to_string()).collect();
    assert_eq!(abouts.len(), names.len());
    let options = |name: &str| {
        let command = commands.iter().find(|command| command.get_name() == name).unwrap();
        command.get_arguments().filter_map(|argument| argument.get_long()).collect::<Vec<_>>()
    };
    assert!(
        options("latency").ends_with(&["heads"])
            && options("train").ends_with(&["heads", "beam-batches", "beam-hidden", "operator-batches"])
    );
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

#[test]
fn families_are_known_by_name_in_their_folders_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_known_in_their_folders_only(&source, "families", &["policy", "policies", "beam"], &[]);
}
