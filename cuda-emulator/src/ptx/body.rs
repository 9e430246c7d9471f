//! A function's body as statements: guards, opcodes split at their dots, operands as text, labels resolved to statements.
use std::collections::HashMap;

use super::{
    Param, Ty, Variable,
    module::{align_up, params, snippet},
};

/// One instruction, still in text form.
#[derive(Debug)]
pub struct Statement<'a> {
    /// The predicate register before it, and whether it is negated.
    pub guard: Option<(u32, bool)>,
    /// `ld.global.v2.f32` as `["ld", "global", "v2", "f32"]`.
    pub parts: Vec<&'a str>,
    pub operands: Vec<&'a str>,
    /// The scope it stands in, for names.
    pub scope: usize,
    pub text: &'a str,
}

#[derive(Debug, Default)]
struct Scope<'a> {
    parent: Option<usize>,
    /// Registers by name, or by prefix with their number: first index, count, type.
    registers: HashMap<&'a str, (u32, u32, Ty)>,
    labels: HashMap<&'a str, usize>,
    params: HashMap<String, Param>,
    targets: HashMap<&'a str, Vec<&'a str>>,
}

/// A parsed body.
#[derive(Debug, Default)]
pub struct Body<'a> {
    pub statements: Vec<Statement<'a>>,
    /// How many registers a frame needs.
    pub registers: u32,
    /// Variables declared inside: `.local` and `.shared`.
    pub variables: Vec<Variable>,
    /// Bytes of `.param` space for its own parameters and its calls.
    pub param_bytes: usize,
    scopes: Vec<Scope<'a>>,
}

impl<'a> Body<'a> {
    /// Parses the text between a function's braces. `param_bytes` is what its own parameters take.
    pub fn parse(text: &'a str, param_bytes: usize) -> Result<Self, String> {
        let mut body = Self { param_bytes, scopes: vec![Scope::default()], ..Self::default() };
        let mut guards = Vec::new();
        let (mut rest, mut scope) = (text.trim_start(), 0);
        while !rest.is_empty() {
            match rest.as_bytes()[0] {
                b'{' => {
                    body.scopes.push(Scope { parent: Some(scope), ..Scope::default() });
                    scope = body.scopes.len() - 1;
                    rest = rest[1..].trim_start();
                    continue;
                }
                b'}' => {
                    scope = body.scopes[scope].parent.ok_or("a closing brace too many")?;
                    rest = rest[1..].trim_start();
                    continue;
                }
                b';' => {
                    rest = rest[1..].trim_start();
                    continue;
                }
                _ => {}
            }
            if rest.starts_with(".loc") && !rest.starts_with(".local") || rest.starts_with(".file") {
                rest = rest[rest.find('\n').unwrap_or(rest.len())..].trim_start();
                continue;
            }
            if let Some(label) = label(rest) {
                rest = rest[label.len()..].trim_start()[1..].trim_start();
                let position = body.statements.len();
                body.scopes[scope].labels.insert(label, position);
                if let Some(list) = rest.strip_prefix(".branchtargets") {
                    let end = list.find(';').ok_or("unfinished .branchtargets")?;
                    let list_of = list[..end].split(',').map(str::trim).collect();
                    body.scopes[scope].targets.insert(label, list_of);
                    rest = list[end + 1..].trim_start();
                } else if rest.starts_with(".callprototype") || rest.starts_with(".calltargets") {
                    rest = rest[rest.find(';').map_or(rest.len(), |i| i + 1)..].trim_start();
                }
                continue;
            }
            let end = rest.find(';').ok_or_else(|| format!("a statement without `;`: {}", snippet(rest)))?;
            let statement = rest[..end].trim();
            rest = rest[end + 1..].trim_start();
            if statement.starts_with('.') {
                body.directive(statement, scope)?;
            } else {
                let (guard, parsed) = parse_statement(statement, scope)?;
                guards.push(guard);
                body.statements.push(parsed);
            }
        }
        for (i, guard) in guards.into_iter().enumerate() {
            let Some((name, negated)) = guard else { continue };
            let at = body.statements[i].scope;
            let register = body.register(name, at).ok_or_else(|| format!("unknown guard `{name}`"))?;
            body.statements[i].guard = Some((register.0, negated));
        }
        Ok(body)
    }

    fn directive(&mut self, text: &'a str, scope: usize) -> Result<(), String> {
        if let Some(list) = text.strip_prefix(".reg") {
            return self.registers(list.trim_start(), scope);
        }
        if text.starts_with(".param") {
            for mut param in params(text)? {
                param.offset += align_up(self.param_bytes, 16);
                self.param_bytes = param.offset + param.size;
                self.scopes[scope].params.insert(param.name.clone(), param);
            }
            return Ok(());
        }
        if text.starts_with(".pragma") {
            return Ok(());
        }
        self.variables.push(Variable::parse(text)?);
        Ok(())
    }

    /// `.b32 %r<12>, %x, %y`: with a count the names are `%r0` to `%r11`.
    fn registers(&mut self, list: &'a str, scope: usize) -> Result<(), String> {
        let list = list.strip_prefix('.').ok_or("`.reg` without a type")?;
        let split = list.find(|c: char| c.is_whitespace()).ok_or("`.reg` without names")?;
        let ty = Ty::parse(&list[..split]).ok_or_else(|| format!("unknown register type in `.reg .{list}`"))?;
        for name in list[split..].split(',').map(str::trim) {
            let (name, count) = match name.split_once('<') {
                Some((name, count)) => (name, count.trim_end_matches('>').parse().map_err(|_| "bad register count")?),
                None => (name, 1),
            };
            self.scopes[scope].registers.insert(name, (self.registers, count, ty));
            self.registers += count;
        }
        Ok(())
    }

    fn scopes_from(&self, scope: usize) -> impl Iterator<Item = &Scope<'a>> {
        std::iter::successors(Some(scope), |s| self.scopes[*s].parent).map(|s| &self.scopes[s])
    }

    /// The index and type of a register, seen from a scope.
    pub fn register(&self, name: &str, scope: usize) -> Option<(u32, Ty)> {
        let split = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let number: Option<u32> = name[split..].parse().ok();
        for s in self.scopes_from(scope) {
            if let Some((first, _, ty)) = s.registers.get(name) {
                return Some((*first, *ty));
            }
            if let (Some(n), Some((first, count, ty))) = (number, s.registers.get(&name[..split]))
                && n < *count
            {
                return Some((first + n, *ty));
            }
        }
        None
    }

    pub fn label(&self, name: &str, scope: usize) -> Option<usize> {
        self.scopes_from(scope).find_map(|s| s.labels.get(name).copied())
    }

    pub fn param(&self, name: &str, scope: usize) -> Option<&Param> {
        self.scopes_from(scope).find_map(|s| s.params.get(name))
    }

    pub fn targets(&self, name: &str, scope: usize) -> Option<&[&'a str]> {
        self.scopes_from(scope).find_map(|s| s.targets.get(name).map(Vec::as_slice))
    }
}

fn label(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$' || c == '%'))?;
    (end > 0 && text[end..].trim_start().starts_with(':') && !text[end..].trim_start().starts_with("::")).then(|| &text[..end])
}

/// The name of a guard, and whether it is negated.
type Guard<'a> = Option<(&'a str, bool)>;

/// A statement with the name of its guard, which the caller looks up when all registers are known.
fn parse_statement(text: &str, scope: usize) -> Result<(Guard<'_>, Statement<'_>), String> {
    let (mut rest, mut guard) = (text, None);
    if let Some(tail) = rest.strip_prefix('@') {
        let negated = tail.starts_with('!');
        let tail = tail.trim_start_matches('!');
        let end = tail.find(char::is_whitespace).ok_or_else(|| format!("a guard alone: {text}"))?;
        guard = Some((&tail[..end], negated));
        rest = tail[end..].trim_start();
    }
    let end = rest.find(|c: char| c.is_whitespace()).unwrap_or(rest.len());
    let parts = rest[..end].split('.').collect();
    Ok((guard, Statement { guard: None, parts, operands: split(&rest[end..]), scope, text }))
}

/// Splits at the commas that stand outside all brackets.
pub fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0i32, 0, Vec::new());
    for (i, b) in text.bytes().enumerate() {
        match b {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                out.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        out.push(last);
    }
    out
}
