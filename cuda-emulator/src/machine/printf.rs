//! `printf` and `assert` of device code.
use super::access::{self, Spaces};
use crate::{error::Fault, ptx::Space};

fn argument(spaces: &mut Spaces, args: &[(usize, usize)], i: usize) -> Result<u64, Fault> {
    let Some((at, size)) = args.get(i) else { return Ok(0) };
    read(spaces, Space::Frame, *at as u64, (*size).min(8))
}

fn read(spaces: &mut Spaces, space: Space, at: u64, size: usize) -> Result<u64, Fault> {
    let place = spaces.place(space, at, size, 1, false)?;
    // SAFETY: `place` has checked the bytes.
    Ok(unsafe { access::load(place.host, size, false) })
}

fn string(spaces: &mut Spaces, mut at: u64) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    while at != 0 && bytes.len() < 4096 {
        match read(spaces, Space::Generic, at, 1)? as u8 {
            0 => break,
            b => bytes.push(b),
        }
        at += 1;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `vprintf(format, arguments)`: each argument takes its size, aligned.
pub fn print(spaces: &mut Spaces, args: &[(usize, usize)], returns: &[(usize, usize)]) -> Result<(), Fault> {
    let (format, mut list) = (argument(spaces, args, 0)?, argument(spaces, args, 1)?);
    let format = string(spaces, format)?;
    let mut out = String::new();
    let mut rest = format.as_str();
    while let Some(i) = rest.find('%') {
        out += &rest[..i];
        rest = &rest[i + 1..];
        if let Some(tail) = rest.strip_prefix('%') {
            out.push('%');
            rest = tail;
            continue;
        }
        let Some(end) = rest.find(|c: char| c.is_alphabetic() && !"hlzjt".contains(c)) else { break };
        let (flags, kind) = (&rest[..end], rest.as_bytes()[end]);
        rest = &rest[end + 1..];
        let long = flags.contains('l') || flags.contains('z') || b"feEgGpsaA".contains(&kind);
        let size = if long { 8 } else { 4 };
        list = list.div_ceil(size) * size;
        let bits = read(spaces, Space::Generic, list, size as usize)?;
        list += size;
        let signed = if long { bits as i64 } else { i64::from(bits as u32 as i32) };
        let value = f64::from_bits(bits);
        let precision = flags.split_once('.').and_then(|p| p.1.trim_end_matches(['l', 'h']).parse::<usize>().ok());
        let text = match kind {
            b'd' | b'i' => signed.to_string(),
            b'u' => bits.to_string(),
            b'x' => format!("{bits:x}"),
            b'X' => format!("{bits:X}"),
            b'p' => format!("{bits:#x}"),
            b'c' => (bits as u8 as char).to_string(),
            b's' => string(spaces, bits)?,
            b'e' | b'E' => format!("{value:.*e}", precision.unwrap_or(6)),
            b'g' | b'G' => value.to_string(),
            _ => format!("{value:.*}", precision.unwrap_or(6)),
        };
        let width = flags.split('.').next().unwrap_or("").trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
        out += &format!("{text:>width$}");
    }
    out += rest;
    print!("{out}");
    if let Some((at, size)) = returns.first() {
        let place = spaces.place(Space::Frame, *at as u64, *size, 1, true)?;
        // SAFETY: `place` has checked the bytes.
        unsafe { access::store(place.host, *size, 1) };
    }
    Ok(())
}

/// The message of `__assertfail(message, file, line, function, size)`.
pub fn assertion(spaces: &mut Spaces, args: &[(usize, usize)]) -> Result<String, Fault> {
    let mut text = [const { String::new() }; 3];
    for (slot, i) in text.iter_mut().zip([0, 1, 3]) {
        let at = argument(spaces, args, i)?;
        *slot = string(spaces, at)?;
    }
    let line = argument(spaces, args, 2)? as u32;
    let [message, file, function] = text;
    Ok(format!("{file}:{line}: {function}: assertion `{message}` failed"))
}
