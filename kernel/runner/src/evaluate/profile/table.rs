//! Writes the file of profiles, and its tables on the page.

use std::collections::HashMap;
use std::fmt::Write as _;

use upshift_report::Table;

use super::layers::{LAYERS, Profile, SHARED};
use super::{COMPARED, COUNTED, WARM_UP};
use crate::evaluate::commit;
use crate::evaluate::file::COMMIT;
use crate::evaluate::plan::MANY_CONNECTIONS;
use crate::evaluate::point::MODELS;

pub(super) fn write(profiles: &[Profile]) -> String {
    let mut text = format!(
        "{COMMIT}{}\nmodel,connections,n,layer,instructions\n",
        commit()
    );
    for Profile { load, layers } in profiles {
        for ((name, _), count) in LAYERS.iter().zip(layers) {
            let (model, connections, n) = (MODELS[load.model], load.connections, load.n);
            let _ = writeln!(text, "{model},{connections},{n},{name},{}", tenths(*count));
        }
    }
    text
}

pub(super) fn tenths(count: u64) -> String {
    format!("{}.{}", count / 10, count % 10)
}

/// The profiles of a file: instructions of a request by shape, layer and model.
struct Known {
    /// Connections and order.
    shapes: Vec<(u32, u32)>,
    cells: HashMap<(u32, u32, String, usize), f64>,
}

impl Known {
    fn parse(file: &str) -> Known {
        let mut table = Known {
            shapes: Vec::new(),
            cells: HashMap::new(),
        };
        for line in file.lines() {
            let words: Vec<&str> = line.split(',').collect();
            let &[model, connections, n, layer, count] = &words[..] else {
                continue;
            };
            let model = MODELS.iter().position(|known| *known == model);
            let (Some(model), Ok(connections), Ok(n), Ok(count)) =
                (model, connections.parse(), n.parse(), count.parse())
            else {
                continue;
            };
            if !table.shapes.contains(&(connections, n)) {
                table.shapes.push((connections, n));
            }
            let key = (connections, n, layer.to_owned(), model);
            table.cells.insert(key, count);
        }
        table
    }

    fn cell(&self, (connections, n): (u32, u32), layer: &str, model: usize) -> f64 {
        let key = (connections, n, layer.to_owned(), model);
        self.cells.get(&key).copied().unwrap_or(0.0)
    }

    fn sum(&self, shape: (u32, u32), model: usize, wanted: impl Fn(&str) -> bool) -> f64 {
        let names = LAYERS.iter().map(|(name, _)| *name);
        let wanted = names.filter(|name| wanted(name));
        wanted.map(|name| self.cell(shape, name, model)).sum()
    }
}

/// Returns the tables of a file of profiles, for the page.
pub(crate) fn draw(folder: &str, file: &str) -> String {
    let known = Known::parse(file);
    if known.shapes.is_empty() {
        return String::new();
    }
    let commit = file.lines().find_map(|line| line.strip_prefix(COMMIT));
    let mut page = format!(
        "## Where the instructions go\n\n`cargo xtask os -- evaluate --profile`, commit `{}`: instructions of a request in a closed loop on one hart, by the source that they are compiled from \
         (each block that QEMU executes is counted, over {COUNTED} requests after the first {WARM_UP}; inlined functions count for themselves, the standard library for what calls it). \
         The client and both ends of its connection are in the machine. The figures are in [`profile.csv`]({folder}/profile.csv).\n\n",
        commit.unwrap_or("unknown")
    );
    let mut shares = Table::new(
        "What the models share is the client, the product, and TCP and IP: if that alone is more than half of KTUT, no kernel answers twice as much. \
         What a kernel decides is the rest.",
        &[
            "<",
            "shared, KCUC",
            "shared, KTUT",
            "share of KTUT",
            "KTUT to KCUC",
            "KTUT to KCUC, of the rest",
        ],
    );
    for &shape in &known.shapes {
        let (connections, n) = shape;
        let [kcuc, ktut] = COMPARED.map(|model| MODELS[model]);
        let title = format!("{n} × {n} on {connections} connections:");
        let mut table = Table::new(title, &["<", kcuc, ktut]);
        for (name, title) in LAYERS {
            let cells = COMPARED.map(|model| format!("{:.0}", known.cell(shape, name, model)));
            table.row(std::iter::once(title.to_owned()).chain(cells));
        }
        let all = COMPARED.map(|model| known.sum(shape, model, |_| true));
        let cells = all.map(|sum| format!("{sum:.0}"));
        table.row(std::iter::once("**all**".to_owned()).chain(cells));
        // The page shows one shape; the file contains the others.
        if connections == MANY_CONNECTIONS {
            page += &table.markdown();
        }
        let is_shared = |name: &str| SHARED.contains(&name);
        let shared = COMPARED.map(|model| known.sum(shape, model, is_shared));
        let rest = [all[0] - shared[0], all[1] - shared[1]];
        shares.row([
            format!("{n} × {n} on {connections}"),
            format!("{:.0}", shared[0]),
            format!("{:.0}", shared[1]),
            format!("{:.0} %", shared[1] * 100.0 / all[1]),
            format!("{:.2} ×", all[1] / all[0]),
            format!("{:.2} ×", rest[1] / rest[0]),
        ]);
    }
    page + &shares.markdown()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_excludes_shared_layers() {
        let file = "# commit x\nmodel,connections,n,layer,instructions\n\
                    KCUC,64,1,tcp,10.0\nKCUC,64,1,trap,5.0\nKTUT,64,1,tcp,10.0\nKTUT,64,1,trap,15.0\n";
        let page = draw("folder", file);
        assert!(
            page.contains("| 1 × 1 on 64 | 10 | 10 | 40 % | 1.67 × | 3.00 × |"),
            "{page}"
        );
    }
}
