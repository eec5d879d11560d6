"""Use of a trained model: streams that grow item by item, and questions at any time."""
