//! Arranges the ranks in a grid, and determines the block of a matrix that each rank has.
//!
//! The grid has `rows` × `columns` ranks, and is as square as their number allows. A dimension of n
//! is divided into parts whose lengths differ by at most one.

use std::ops::Range;

/// The shape of the grid, and the position of each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Grid {
    pub(crate) fn new(ranks: usize) -> Grid {
        let rows = (1..=ranks.isqrt())
            .rev()
            .find(|rows| ranks.is_multiple_of(*rows))
            .unwrap_or(1);
        Grid {
            rows,
            columns: ranks / rows,
        }
    }

    pub(crate) fn position(self, rank: usize) -> (usize, usize) {
        (rank / self.columns, rank % self.columns)
    }

    /// Returns the rows and the columns of a matrix of order `n` that belong to a rank.
    pub(crate) fn block(self, n: usize, rank: usize) -> (Range<usize>, Range<usize>) {
        let (row, column) = self.position(rank);
        (part(n, self.rows, row), part(n, self.columns, column))
    }
}

/// Returns the k-th of `parts` parts of `0..n`.
pub(crate) fn part(n: usize, parts: usize, k: usize) -> Range<usize> {
    n * k / parts..n * (k + 1) / parts
}

/// Returns the index of the part that contains `position`.
pub(crate) fn owner(n: usize, parts: usize, position: usize) -> usize {
    (0..parts)
        .find(|k| part(n, parts, *k).contains(&position))
        .unwrap_or(0)
}

/// Copies a rectangle out of a matrix with rows of `stride` items.
pub(crate) fn cut(
    matrix: &[u64],
    stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
) -> Vec<u64> {
    let mut out = Vec::with_capacity(rows.len() * columns.len());
    for row in rows {
        out.extend_from_slice(&matrix[row * stride..][columns.clone()]);
    }
    out
}

/// Copies a rectangle into a matrix with rows of `stride` items.
pub(crate) fn paste(
    matrix: &mut [u64],
    stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    block: &[u64],
) {
    for (row, items) in rows.zip(block.chunks_exact(columns.len().max(1))) {
        matrix[row * stride..][columns.clone()].copy_from_slice(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_as_square_as_possible() {
        let shapes = [1, 2, 3, 4, 6, 7, 12, 64].map(Grid::new);
        let expected = [
            (1, 1),
            (1, 2),
            (1, 3),
            (2, 2),
            (2, 3),
            (1, 7),
            (3, 4),
            (8, 8),
        ];
        for (grid, (rows, columns)) in shapes.into_iter().zip(expected) {
            assert_eq!(grid, Grid { rows, columns });
        }
    }

    #[test]
    fn parts_cover_everything_once() {
        for n in 0..40 {
            for parts in 1..9 {
                let all: Vec<_> = (0..parts).flat_map(|k| part(n, parts, k)).collect();
                assert_eq!(all, (0..n).collect::<Vec<_>>());
                for index in 0..n {
                    assert!(part(n, parts, owner(n, parts, index)).contains(&index));
                }
            }
        }
    }

    #[test]
    fn a_block_that_is_cut_and_pasted_is_unchanged() {
        let n = 11;
        let matrix: Vec<u64> = (0..n as u64 * n as u64).collect();
        let grid = Grid::new(6);
        let mut copy = vec![0; n * n];
        for rank in 0..6 {
            let (rows, columns) = grid.block(n, rank);
            let block = cut(&matrix, n, rows.clone(), columns.clone());
            paste(&mut copy, n, rows, columns, &block);
        }
        assert_eq!(copy, matrix);
    }
}
