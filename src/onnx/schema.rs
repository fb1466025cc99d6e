//! The fields of every message of `onnx-ml.proto`: numbers, names and encodings, for walking a file without
//! decoding it. A test compares the table with the file.

use Kind::{Bytes, Double, Float, Int, Text};

/// A message of `onnx-ml.proto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// `ModelProto`
    Model,
    /// `GraphProto`
    Graph,
    /// `NodeProto`
    Node,
    /// `AttributeProto`
    Attribute,
    /// `FunctionProto`
    Function,
    /// `TensorProto`
    Tensor,
    /// `TensorProto.Segment`
    Segment,
    /// `SparseTensorProto`
    Sparse,
    /// `ValueInfoProto`
    ValueInfo,
    /// `TypeProto`
    Type,
    /// `TypeProto.Tensor` and `TypeProto.SparseTensor`
    TensorType,
    /// `TypeProto.Sequence` and `TypeProto.Optional`
    ElementType,
    /// `TypeProto.Map`
    MapType,
    /// `TypeProto.Opaque`
    OpaqueType,
    /// `TensorShapeProto`
    Shape,
    /// `TensorShapeProto.Dimension`
    Dimension,
    /// `StringStringEntryProto`
    Entry,
    /// `OperatorSetIdProto`
    OperatorSet,
    /// `TensorAnnotation`
    Annotation,
    /// `TrainingInfoProto`
    Training,
    /// `DeviceConfigurationProto`
    Devices,
    /// `NodeDeviceConfigurationProto`
    NodeDevices,
    /// `ShardingSpecProto`
    Sharding,
    /// `IntIntListEntryProto`
    IntsEntry,
    /// `ShardedDimProto`
    ShardedDim,
    /// `SimpleShardedDimProto`
    SimpleShardedDim,
}

/// The encoding of the content of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A varint: integers and enumerations.
    Int,
    /// Four bytes.
    Float,
    /// Eight bytes.
    Double,
    /// UTF-8.
    Text,
    /// Any bytes.
    Bytes,
    /// Another message.
    Message(Message),
}

/// One field of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    pub(crate) number: u32,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// True if it is a list; lists of numbers may be packed.
    pub(crate) repeated: bool,
}

const fn one(number: u32, name: &'static str, kind: Kind) -> Row {
    Row { number, name, kind, repeated: false }
}

const fn many(number: u32, name: &'static str, kind: Kind) -> Row {
    Row { number, name, kind, repeated: true }
}

const fn a(message: Message) -> Kind {
    Kind::Message(message)
}

impl Message {
    /// The fields of the message.
    pub(crate) fn rows(self) -> &'static [Row] {
        match self {
            Message::Model => MODEL,
            Message::Graph => GRAPH,
            Message::Node => NODE,
            Message::Attribute => ATTRIBUTE,
            Message::Function => FUNCTION,
            Message::Tensor => TENSOR,
            Message::Segment => const { &[one(1, "begin", Int), one(2, "end", Int)] },
            Message::Sparse => SPARSE,
            Message::ValueInfo => VALUE_INFO,
            Message::Type => TYPE,
            Message::TensorType => const { &[one(1, "elem_type", Int), one(2, "shape", a(Message::Shape))] },
            Message::ElementType => const { &[one(1, "elem_type", a(Message::Type))] },
            Message::MapType => const { &[one(1, "key_type", Int), one(2, "value_type", a(Message::Type))] },
            Message::OpaqueType => const { &[one(1, "domain", Text), one(2, "name", Text)] },
            Message::Shape => const { &[many(1, "dim", a(Message::Dimension))] },
            Message::Dimension => {
                const { &[one(1, "dim_value", Int), one(2, "dim_param", Text), one(3, "denotation", Text)] }
            }
            Message::Entry => const { &[one(1, "key", Text), one(2, "value", Text)] },
            Message::OperatorSet => const { &[one(1, "domain", Text), one(2, "version", Int)] },
            Message::Annotation => ANNOTATION,
            Message::Training => TRAINING,
            Message::Devices => {
                const { &[one(1, "name", Text), one(2, "num_devices", Int), many(3, "device", Text)] }
            }
            Message::NodeDevices => NODE_DEVICES,
            Message::Sharding => SHARDING,
            Message::IntsEntry => const { &[one(1, "key", Int), many(2, "value", Int)] },
            Message::ShardedDim => {
                const { &[one(1, "axis", Int), many(2, "simple_sharding", a(Message::SimpleShardedDim))] }
            }
            Message::SimpleShardedDim => {
                const { &[one(1, "dim_value", Int), one(2, "dim_param", Text), one(3, "num_shards", Int)] }
            }
        }
    }

    /// The field with this number; `None` for an unknown field.
    pub(crate) fn row(self, number: u32) -> Option<&'static Row> {
        self.rows().iter().find(|row| row.number == number)
    }
}

const MODEL: &[Row] = &[
    one(1, "ir_version", Int),
    one(2, "producer_name", Text),
    one(3, "producer_version", Text),
    one(4, "domain", Text),
    one(5, "model_version", Int),
    one(6, "doc_string", Text),
    one(7, "graph", a(Message::Graph)),
    many(8, "opset_import", a(Message::OperatorSet)),
    many(14, "metadata_props", a(Message::Entry)),
    many(20, "training_info", a(Message::Training)),
    many(25, "functions", a(Message::Function)),
    many(26, "configuration", a(Message::Devices)),
];

const GRAPH: &[Row] = &[
    many(1, "node", a(Message::Node)),
    one(2, "name", Text),
    many(5, "initializer", a(Message::Tensor)),
    one(10, "doc_string", Text),
    many(11, "input", a(Message::ValueInfo)),
    many(12, "output", a(Message::ValueInfo)),
    many(13, "value_info", a(Message::ValueInfo)),
    many(14, "quantization_annotation", a(Message::Annotation)),
    many(15, "sparse_initializer", a(Message::Sparse)),
    many(16, "metadata_props", a(Message::Entry)),
];

const NODE: &[Row] = &[
    many(1, "input", Text),
    many(2, "output", Text),
    one(3, "name", Text),
    one(4, "op_type", Text),
    many(5, "attribute", a(Message::Attribute)),
    one(6, "doc_string", Text),
    one(7, "domain", Text),
    one(8, "overload", Text),
    many(9, "metadata_props", a(Message::Entry)),
    many(10, "device_configurations", a(Message::NodeDevices)),
];

const ATTRIBUTE: &[Row] = &[
    one(1, "name", Text),
    one(2, "f", Float),
    one(3, "i", Int),
    one(4, "s", Bytes),
    one(5, "t", a(Message::Tensor)),
    one(6, "g", a(Message::Graph)),
    many(7, "floats", Float),
    many(8, "ints", Int),
    many(9, "strings", Bytes),
    many(10, "tensors", a(Message::Tensor)),
    many(11, "graphs", a(Message::Graph)),
    one(13, "doc_string", Text),
    one(14, "tp", a(Message::Type)),
    many(15, "type_protos", a(Message::Type)),
    one(20, "type", Int),
    one(21, "ref_attr_name", Text),
    one(22, "sparse_tensor", a(Message::Sparse)),
    many(23, "sparse_tensors", a(Message::Sparse)),
];

const FUNCTION: &[Row] = &[
    one(1, "name", Text),
    many(4, "input", Text),
    many(5, "output", Text),
    many(6, "attribute", Text),
    many(7, "node", a(Message::Node)),
    one(8, "doc_string", Text),
    many(9, "opset_import", a(Message::OperatorSet)),
    one(10, "domain", Text),
    many(11, "attribute_proto", a(Message::Attribute)),
    many(12, "value_info", a(Message::ValueInfo)),
    one(13, "overload", Text),
    many(14, "metadata_props", a(Message::Entry)),
];

const TENSOR: &[Row] = &[
    many(1, "dims", Int),
    one(2, "data_type", Int),
    one(3, "segment", a(Message::Segment)),
    many(4, "float_data", Float),
    many(5, "int32_data", Int),
    many(6, "string_data", Bytes),
    many(7, "int64_data", Int),
    one(8, "name", Text),
    one(9, "raw_data", Bytes),
    many(10, "double_data", Double),
    many(11, "uint64_data", Int),
    one(12, "doc_string", Text),
    many(13, "external_data", a(Message::Entry)),
    one(14, "data_location", Int),
    many(16, "metadata_props", a(Message::Entry)),
];

const SPARSE: &[Row] =
    &[one(1, "values", a(Message::Tensor)), one(2, "indices", a(Message::Tensor)), many(3, "dims", Int)];

const VALUE_INFO: &[Row] = &[
    one(1, "name", Text),
    one(2, "type", a(Message::Type)),
    one(3, "doc_string", Text),
    many(4, "metadata_props", a(Message::Entry)),
];

const TYPE: &[Row] = &[
    one(1, "tensor_type", a(Message::TensorType)),
    one(4, "sequence_type", a(Message::ElementType)),
    one(5, "map_type", a(Message::MapType)),
    one(6, "denotation", Text),
    one(7, "opaque_type", a(Message::OpaqueType)),
    one(8, "sparse_tensor_type", a(Message::TensorType)),
    one(9, "optional_type", a(Message::ElementType)),
];

const ANNOTATION: &[Row] =
    &[one(1, "tensor_name", Text), many(2, "quant_parameter_tensor_names", a(Message::Entry))];

const TRAINING: &[Row] = &[
    one(1, "initialization", a(Message::Graph)),
    one(2, "algorithm", a(Message::Graph)),
    many(3, "initialization_binding", a(Message::Entry)),
    many(4, "update_binding", a(Message::Entry)),
];

const NODE_DEVICES: &[Row] = &[
    one(1, "configuration_id", Text),
    many(2, "sharding_spec", a(Message::Sharding)),
    one(3, "pipeline_stage", Int),
];

const SHARDING: &[Row] = &[
    one(1, "tensor_name", Text),
    many(2, "device", Int),
    many(3, "index_to_device_group_map", a(Message::IntsEntry)),
    many(4, "sharded_dim", a(Message::ShardedDim)),
];

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Every message, with its name in the file.
    pub(crate) const MESSAGES: &[(&str, Message)] = &[
        ("ModelProto", Message::Model),
        ("GraphProto", Message::Graph),
        ("NodeProto", Message::Node),
        ("AttributeProto", Message::Attribute),
        ("FunctionProto", Message::Function),
        ("TensorProto", Message::Tensor),
        ("Segment", Message::Segment),
        ("SparseTensorProto", Message::Sparse),
        ("ValueInfoProto", Message::ValueInfo),
        ("TypeProto", Message::Type),
        ("Tensor", Message::TensorType),
        ("SparseTensor", Message::TensorType),
        ("Sequence", Message::ElementType),
        ("Optional", Message::ElementType),
        ("Map", Message::MapType),
        ("Opaque", Message::OpaqueType),
        ("TensorShapeProto", Message::Shape),
        ("Dimension", Message::Dimension),
        ("StringStringEntryProto", Message::Entry),
        ("OperatorSetIdProto", Message::OperatorSet),
        ("TensorAnnotation", Message::Annotation),
        ("TrainingInfoProto", Message::Training),
        ("DeviceConfigurationProto", Message::Devices),
        ("NodeDeviceConfigurationProto", Message::NodeDevices),
        ("ShardingSpecProto", Message::Sharding),
        ("IntIntListEntryProto", Message::IntsEntry),
        ("ShardedDimProto", Message::ShardedDim),
        ("SimpleShardedDimProto", Message::SimpleShardedDim),
    ];

    fn message(name: &str) -> Option<Message> {
        MESSAGES.iter().find(|(known, _)| *known == name).map(|(_, message)| *message)
    }

    /// The fields that the file declares, by message.
    fn declared(text: &str) -> Vec<(String, u32, String, Kind, bool)> {
        let mut around: Vec<Option<String>> = Vec::new();
        let mut found = Vec::new();
        for line in text.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["message", name, "{"] => around.push(Some(name.to_owned())),
                [.., "{"] => around.push(None),
                ["}" | "};"] => drop(around.pop()),
                ["optional" | "repeated", ..] | [_, _, "=", _] if around.last().is_some() => {
                    let Some(owner) = around.iter().rev().flatten().next() else { continue };
                    let is_enum = around.last().is_some_and(Option::is_none) && words.len() < 4;
                    if is_enum || words[0] == "option" {
                        continue;
                    }
                    let labelled = matches!(words[0], "optional" | "repeated");
                    let [ty, name, _, number] = words[usize::from(labelled)..][..4] else { continue };
                    let number = number.trim_end_matches(';').parse().unwrap();
                    let kind = match ty {
                        "int32" | "int64" | "uint64" | "AttributeType" | "DataLocation" => Int,
                        "float" => Float,
                        "double" => Double,
                        "string" => Text,
                        "bytes" => Bytes,
                        other => a(message(other).unwrap_or_else(|| panic!("no message {other}"))),
                    };
                    found.push((owner.clone(), number, name.to_owned(), kind, words[0] == "repeated"));
                }
                _ => {}
            }
        }
        found
    }

    #[test]
    fn the_table_is_what_the_file_declares() {
        let declared = declared(include_str!("onnx-ml.proto"));
        for (owner, number, name, kind, repeated) in &declared {
            let owner_message = message(owner).unwrap_or_else(|| panic!("no table for {owner}"));
            let row = owner_message.row(*number).unwrap_or_else(|| panic!("{owner}.{name} is missing"));
            assert_eq!(
                (row.name, row.kind, row.repeated),
                (name.as_str(), *kind, *repeated),
                "{owner}.{name}"
            );
        }
        for (name, message) in MESSAGES {
            let n = declared.iter().filter(|(owner, ..)| owner == name).count();
            assert_eq!(message.rows().len(), n, "{name}");
        }
        assert!(declared.len() > 120, "{}", declared.len());
    }
}
