//! Exports a stub for every symbol of `symbols.txt` that the sources do not define, so that a program linked against the
//! real libraries loads: calling such a stub names it and returns "not supported".
use std::{collections::HashSet, env, fs, path::Path};

fn main() {
    println!("cargo::rerun-if-changed=symbols.txt");
    println!("cargo::rerun-if-changed=src");
    let mut defined = HashSet::new();
    collect(Path::new("src"), &mut defined);
    let mut out = String::new();
    for name in fs::read_to_string("symbols.txt").expect("symbols.txt").lines().filter(|n| !n.is_empty()) {
        if defined.contains(name) {
            continue;
        }
        // CUDA_ERROR_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED, CURAND_STATUS_INTERNAL_ERROR
        let code = match name {
            n if n.starts_with("cublas") => 15,
            n if n.starts_with("curand") => 999,
            _ => 801,
        };
        out += &format!("#[unsafe(no_mangle)]\npub extern \"C\" fn {name}() -> i32 {{ crate::log::missing(\"{name}\", {code}) }}\n");
    }
    let path = Path::new(&env::var("OUT_DIR").expect("OUT_DIR")).join("stubs.rs");
    fs::write(path, out).expect("stubs.rs");
}

/// The names of all functions that the sources export.
fn collect(dir: &Path, defined: &mut HashSet<String>) {
    for entry in fs::read_dir(dir).expect("source folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, defined);
            continue;
        }
        let text = fs::read_to_string(&path).expect("source file");
        for (at, _) in text.match_indices("fn cu") {
            let rest = &text[at + 3..];
            defined.insert(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
        // Names that a macro turns into functions stand at the start of a line, separated by commas.
        for line in text.lines().filter(|l| l.trim_start().starts_with("cublas")) {
            defined.extend(line.split(',').map(|name| name.trim().to_string()));
        }
    }
}
