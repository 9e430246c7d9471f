//! A module's top level: entries, functions and variables. Bodies stay text until a launch needs them.
use std::{collections::HashMap, ops::Range};

use super::{Space, Ty};

/// A parameter of an entry or a function, or a `.param` variable of a call: its place in the argument block.
#[derive(Clone, Debug)]
pub struct Param {
    pub name: String,
    pub offset: usize,
    pub size: usize,
}

/// An entry or a function.
#[derive(Debug)]
pub struct Function {
    pub name: String,
    pub entry: bool,
    pub params: Vec<Param>,
    /// The values that a function returns.
    pub returns: Vec<Param>,
    /// Bytes of the text inside the braces; none for a declaration.
    pub body: Option<Range<usize>>,
    /// `.maxntid`, the largest block it was compiled for.
    pub max_threads: Option<u32>,
}

/// A value in an initialiser: bytes, or the address of another variable.
#[derive(Clone, Debug)]
pub struct Symbol {
    pub at: usize,
    pub name: String,
    pub addend: u64,
}

/// A variable of the module's `.global`, `.const` or `.shared` space.
#[derive(Clone, Debug)]
pub struct Variable {
    pub name: String,
    pub space: Space,
    pub align: usize,
    /// Bytes; 0 for the dynamic shared array.
    pub size: usize,
    pub init: Vec<u8>,
    pub symbols: Vec<Symbol>,
}

/// A parsed module.
#[derive(Debug)]
pub struct Module {
    pub text: String,
    pub functions: HashMap<String, Function>,
    pub variables: HashMap<String, Variable>,
    /// Names of the entries in the order of the text.
    pub entries: Vec<String>,
    /// The `.target`, for example `sm_80`.
    pub target: String,
}

impl Module {
    pub fn parse(source: &str) -> Result<Self, String> {
        let text = strip_comments(source);
        let mut module = Self { text, functions: HashMap::new(), variables: HashMap::new(), entries: Vec::new(), target: String::new() };
        let text = std::mem::take(&mut module.text);
        let mut at = 0;
        while let Some(start) = next(&text, at) {
            at = module.item(&text, start)?;
        }
        module.text = text;
        Ok(module)
    }

    /// Reads one top-level item that starts at `start`; returns where the next may start.
    fn item(&mut self, text: &str, start: usize) -> Result<usize, String> {
        let rest = &text[start..];
        if rest.starts_with(".version") || rest.starts_with(".target") || rest.starts_with(".address_size") || rest.starts_with(".file") {
            let end = start + rest.find('\n').unwrap_or(rest.len());
            if let Some(target) = text[start..end].strip_prefix(".target") {
                self.target = target.split(',').next().unwrap_or("").trim().to_string();
            }
            return Ok(end);
        }
        if rest.starts_with(".section") {
            return closing(text, start + rest.find('{').ok_or(".section without a brace")?).map(|e| e + 1);
        }
        let semicolon = rest.find(';').map(|i| start + i);
        let open = rest.find('{').map(|i| start + i);
        let head_end = match (semicolon, open) {
            (Some(s), Some(o)) => s.min(o),
            (Some(s), None) => s,
            (None, Some(o)) => o,
            (None, None) => return Err(format!("unfinished item: {}", snippet(rest))),
        };
        let head = &text[start..head_end];
        let is_function = words(head).any(|w| w == ".entry" || w == ".func");
        if is_function {
            let (body, end) = match open {
                Some(open) if open == head_end => {
                    let close = closing(text, open)?;
                    (Some(open + 1..close), close + 1)
                }
                _ => (None, head_end + 1),
            };
            self.function(head, body)?;
            return Ok(end);
        }
        let end = semicolon.ok_or_else(|| format!("variable without `;`: {}", snippet(rest)))?;
        if !head.starts_with(".alias") && !head.starts_with(".pragma") {
            let variable = Variable::parse(&text[start..end])?;
            self.variables.insert(variable.name.clone(), variable);
        }
        Ok(end + 1)
    }

    fn function(&mut self, head: &str, body: Option<Range<usize>>) -> Result<(), String> {
        let entry = words(head).any(|w| w == ".entry");
        let keyword = if entry { ".entry" } else { ".func" };
        let mut rest = head[head.find(keyword).unwrap_or(0) + keyword.len()..].trim_start();
        let mut returns = Vec::new();
        while let Some(tail) = rest.strip_prefix(".attribute").or_else(|| rest.strip_prefix(".noreturn")) {
            rest = tail.trim_start();
            if rest.starts_with('(') {
                rest = rest[rest.find(')').map_or(rest.len(), |i| i + 1)..].trim_start();
            }
        }
        if let Some(tail) = rest.strip_prefix('(') {
            let close = tail.find(')').ok_or("unclosed return list")?;
            returns = params(&tail[..close])?;
            rest = tail[close + 1..].trim_start();
        }
        let end = rest.find(|c: char| c == '(' || c.is_whitespace()).unwrap_or(rest.len());
        let name = rest[..end].to_string();
        rest = rest[end..].trim_start();
        let mut list = Vec::new();
        if let Some(tail) = rest.strip_prefix('(') {
            let close = tail.find(')').ok_or("unclosed parameter list")?;
            list = params(&tail[..close])?;
            rest = &tail[close + 1..];
        }
        let max_threads = rest.find(".maxntid").map(|i| {
            let tail = &rest[i + 8..];
            let tail = &tail[..tail.find('.').unwrap_or(tail.len())];
            tail.split(',').filter_map(|n| n.trim().parse::<u32>().ok()).product()
        });
        if let Some(known) = self.functions.get(&name)
            && known.body.is_some()
        {
            return Ok(());
        }
        if entry && !self.functions.contains_key(&name) {
            self.entries.push(name.clone());
        }
        self.functions.insert(name.clone(), Function { name, entry, params: list, returns, body, max_threads });
        Ok(())
    }
}

impl Variable {
    /// Parses a declaration without its `;`, for example `.global .align 4 .b8 name[16] = {1, 2}`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (head, init) = match text.split_once('=') {
            Some((head, init)) => (head, Some(init.trim())),
            None => (text, None),
        };
        let bad = || format!("cannot read the variable `{}`", snippet(text));
        let (mut space, mut align, mut ty, mut declarator, mut vector) = (None, None, None, String::new(), 1);
        let mut tokens = words(head);
        while let Some(word) = tokens.next() {
            let Some(directive) = word.strip_prefix('.') else {
                declarator += word;
                continue;
            };
            match directive {
                "align" => align = tokens.next().and_then(|n| n.parse().ok()),
                "v2" => vector = 2,
                "v4" => vector = 4,
                _ => {
                    space = space.or(Space::parse(directive));
                    ty = ty.or(Ty::parse(directive));
                }
            }
        }
        let (space, ty) = (space.ok_or_else(bad)?, ty.ok_or_else(bad)?);
        let (name, dims) = match declarator.find('[') {
            Some(open) => (&declarator[..open], &declarator[open..]),
            None => (declarator.as_str(), ""),
        };
        let mut count = vector;
        for dim in dims.split('[').skip(1) {
            count *= dim.trim_end_matches(']').trim().parse::<usize>().unwrap_or(0);
        }
        let mut variable = Self {
            name: name.to_string(),
            space,
            align: align.unwrap_or(ty.size() * vector),
            size: count * ty.size(),
            init: Vec::new(),
            symbols: Vec::new(),
        };
        if let Some(init) = init {
            variable.initialise(init, ty)?;
        }
        Ok(variable)
    }

    fn initialise(&mut self, init: &str, ty: Ty) -> Result<(), String> {
        for value in init.split(['{', '}', ',']).map(str::trim).filter(|v| !v.is_empty()) {
            // `mask(symbol)` selects a byte of an address: nothing that we run uses it.
            let value = value.strip_prefix("generic(").and_then(|v| v.strip_suffix(')')).unwrap_or(value);
            let bits = match literal(value, ty) {
                Some(bits) => bits,
                None => {
                    let (name, addend) = value.split_once('+').unwrap_or((value, "0"));
                    let addend = literal(addend.trim(), Ty::U64).ok_or_else(|| format!("cannot read the initialiser `{value}`"))?;
                    self.symbols.push(Symbol { at: self.init.len(), name: name.trim().to_string(), addend });
                    0
                }
            };
            self.init.extend_from_slice(&bits.to_le_bytes()[..ty.size().min(8)]);
        }
        // An array without a length takes that of its initialiser.
        self.size = self.size.max(self.init.len());
        Ok(())
    }
}

/// A parameter list: offsets follow from sizes and alignments.
pub fn params(text: &str) -> Result<Vec<Param>, String> {
    let mut out = Vec::new();
    let mut end = 0;
    for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
        // `.reg` parameters of hand-written code are laid out like `.param`; `.ptr .align 8` describes the pointee.
        let item = item.split(".ptr").collect::<Vec<_>>();
        let mut declaration = item[0].to_string();
        if item.len() > 1 {
            declaration = format!("{} {}", declaration, item[1].split_whitespace().last().unwrap_or(""));
        }
        let variable = Variable::parse(&declaration.replace(".reg", ".param"))?;
        let offset = align_up(end, variable.align.max(1));
        end = offset + variable.size;
        out.push(Param { name: variable.name, offset, size: variable.size });
    }
    Ok(out)
}

pub fn align_up(value: usize, align: usize) -> usize {
    value.div_ceil(align) * align
}

/// The bits of a literal, read as `ty` where it is a decimal fraction.
pub fn literal(text: &str, ty: Ty) -> Option<u64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest.trim_start()),
        None => (false, text),
    };
    let sign = |v: u64| if negative { v.wrapping_neg() } else { v };
    let first = digits.chars().next()?;
    if !first.is_ascii_digit() {
        return None;
    }
    if let Some(hex) = digits.strip_prefix("0f").or_else(|| digits.strip_prefix("0F"))
        && hex.len() == 8
    {
        return convert(f32::from_bits(u32::from_str_radix(hex, 16).ok()?) as f64, negative, ty);
    }
    if let Some(hex) = digits.strip_prefix("0d").or_else(|| digits.strip_prefix("0D"))
        && hex.len() == 16
    {
        return convert(f64::from_bits(u64::from_str_radix(hex, 16).ok()?), negative, ty);
    }
    if digits.contains('.') || (digits.contains(['e', 'E']) && !digits.starts_with("0x") && !digits.starts_with("0X")) {
        return convert(digits.parse().ok()?, negative, ty);
    }
    let digits = digits.trim_end_matches('U');
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    let value = u64::from_str_radix(digits, radix).ok()?;
    match ty {
        Ty::F32 | Ty::F64 if radix == 10 => convert(value as f64, negative, ty),
        _ => Some(sign(value)),
    }
}

fn convert(value: f64, negative: bool, ty: Ty) -> Option<u64> {
    let value = if negative { -value } else { value };
    Some(match ty {
        Ty::F64 | Ty::B64 | Ty::U64 | Ty::S64 => value.to_bits(),
        // A NaN keeps its payload through the conversion to f64 and back.
        _ => u64::from((value as f32).to_bits()),
    })
}

/// Words of a declaration: separated by white space, with directives (`.b8`) split off.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().flat_map(|word| {
        let mut parts = Vec::new();
        let mut rest = word;
        while let Some(dot) = rest.get(1..).and_then(|t| t.find('.')).filter(|_| rest.starts_with('.')) {
            parts.push(&rest[..dot + 1]);
            rest = &rest[dot + 1..];
        }
        parts.push(rest);
        parts
    })
}

fn next(text: &str, at: usize) -> Option<usize> {
    text[at..].find(|c: char| !c.is_whitespace() && c != ';').map(|i| at + i)
}

/// The brace that closes the one at `open`.
fn closing(text: &str, open: usize) -> Result<usize, String> {
    let mut depth = 0usize;
    for (i, b) in text.as_bytes()[open..].iter().enumerate() {
        match b {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Ok(open + i);
                }
            }
            _ => {}
        }
    }
    Err(format!("unclosed brace: {}", snippet(&text[open..])))
}

pub fn snippet(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(80).collect()
}

/// The text without comments; strings (file names) are kept.
fn strip_comments(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(i) = rest.find(['/', '"']) {
        out.push_str(&rest[..i]);
        rest = &rest[i..];
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |e| e + 2)
        } else {
            let keep = rest.strip_prefix('"').map_or(1, |tail| tail.find('"').map_or(rest.len(), |e| e + 2));
            out.push_str(&rest[..keep]);
            keep
        };
        rest = &rest[skip..];
    }
    out.push_str(rest);
    out
}
