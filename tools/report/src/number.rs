//! Formats numbers with about three digits and a unit. A value that is not finite becomes `–`.

/// Formats a whole number in groups of three digits: `1234567` becomes `1,234,567`.
#[must_use]
pub fn integer(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    if value <= -0.5 {
        text.push('-');
    }
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time in microseconds with its unit.
#[must_use]
pub fn micros(us: f64) -> String {
    match us {
        us if !us.is_finite() => "–".into(),
        us if us < 10.0 => format!("{us:.2} µs"),
        us if us < 100.0 => format!("{us:.1} µs"),
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e4 => format!("{:.2} ms", us / 1e3),
        us if us < 1e5 => format!("{:.1} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// Formats a number of bytes in the unit that fits.
#[must_use]
pub fn bytes(bytes: f64) -> String {
    match bytes {
        b if !b.is_finite() => "–".into(),
        b if b < 10_240.0 => format!("{b:.0} B"),
        b if b < 10_240.0 * 1024.0 => format!("{:.0} KiB", b / 1024.0),
        b => format!("{:.0} MiB", b / 1024.0 / 1024.0),
    }
}

/// Formats `a / b` as a factor.
#[must_use]
pub fn factor(a: f64, b: f64) -> String {
    match a / b {
        ratio if !ratio.is_finite() || b <= 0.0 => "–".into(),
        ratio if ratio < 10.0 => format!("{ratio:.2}×"),
        ratio => format!("{ratio:.0}×"),
    }
}

/// Formats a number without unit for the tick of an axis: `1500000` becomes `1.5M`.
#[must_use]
pub fn tick_label(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    if scaled != 0.0 && scaled.abs() < 0.001 {
        return format!("{scaled}");
    }
    let text = format!("{scaled:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{}{suffix}", if text == "-0" { "0" } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits_and_a_unit() {
        assert_eq!(integer(1_234_567.4), "1,234,567");
        assert_eq!(integer(999.0), "999");
        assert_eq!(integer(-1234.0), "-1,234");
        assert_eq!(integer(f64::NAN), "–");
        assert_eq!(micros(12.34), "12.3 µs");
        assert_eq!(micros(1234.0), "1.23 ms");
        assert_eq!(micros(2e6), "2.00 s");
        assert_eq!(bytes(120.0), "120 B");
        assert_eq!(factor(3.0, 2.0), "1.50×");
        assert_eq!(factor(3.0, 0.0), "–");
        assert_eq!(tick_label(1_500_000.0), "1.5M");
        assert_eq!(tick_label(20_000.0), "20k");
        assert_eq!(tick_label(0.02), "0.02");
        assert_eq!(tick_label(0.0001), "0.0001");
        assert_eq!(tick_label(100.0), "100");
        assert_eq!(tick_label(-0.0), "0");
    }
}
