//! Decodes every kernel of PTX files and names what is missing: `cargo run --example decode FILE...`
use std::collections::{BTreeMap, HashMap};

use cuda_emulator::{decode, ptx};

fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let module = ptx::Module::parse(&text).expect("a PTX module");
        let globals: HashMap<String, u64> = module.variables.keys().map(|k| (k.clone(), 4096)).collect();
        let target = decode::Target { module: &module, globals: &globals };
        let mut missing: BTreeMap<String, (usize, String)> = BTreeMap::new();
        for name in &module.entries {
            if let Err(error) = decode::kernel(&target, name) {
                let key = error.split('`').nth(1).unwrap_or("").split_whitespace().next().unwrap_or("").to_string();
                let entry = missing.entry(key).or_insert((0, error));
                entry.0 += 1;
            }
        }
        println!("{path}: {} kernels, {} kinds of failure", module.entries.len(), missing.len());
        for (count, error) in missing.values() {
            println!("  {count} x {error}");
        }
    }
}
