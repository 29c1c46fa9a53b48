use std::path::Path;
pub struct Peers;
impl Peers {
    pub fn find(_p: Option<&Path>) -> Self {
        Self
    }
}
