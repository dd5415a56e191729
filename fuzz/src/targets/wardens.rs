//! Messages between programs and their warden, packets of wardens of other hosts, and a warden's file.

pub(super) fn run(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    match choice % 3 {
        2 => {
            if let Ok(text) = std::str::from_utf8(bytes) {
                martlet_warden::fuzz::neighbours(text);
            }
        }
        1 => martlet_warden::fuzz::packets(bytes),
        _ => martlet_warden::fuzz::message(bytes),
    }
}
