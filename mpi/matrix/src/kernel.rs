//! Multiplies matrices modulo 2^64, and yields between short pieces.

use upshift::yield_if_needed;

/// Adds the product of `a` (rows × inner) and `b` (inner × columns) to `c` (rows × columns).
///
/// The function may yield after each row of `b`, that is, every few hundred nanoseconds.
pub async fn multiply(a: &[u64], b: &[u64], c: &mut [u64], inner: usize, columns: usize) {
    if inner == 0 || columns == 0 {
        return;
    }
    for (left, target) in a.chunks_exact(inner).zip(c.chunks_exact_mut(columns)) {
        for (a, right) in left.iter().zip(b.chunks_exact(columns)) {
            for (sum, b) in target.iter_mut().zip(right) {
                *sum = sum.wrapping_add(a.wrapping_mul(*b));
            }
            yield_if_needed().await;
        }
    }
}
