"""Images and videos: models that read only text refuse them, by name and before anything runs."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


@pytest.mark.parametrize("medium", [sgl.image(b"\x89PNG"), sgl.image("cat.png"), sgl.video("cat.mp4", 4)])
def test_a_text_model_refuses(medium):
    @sgl.function
    def image_qa(s, question):
        s += sgl.user(medium + question)
        s += sgl.assistant(sgl.gen("answer"))

    with pytest.raises(sgl.ProgramError) as caught:
        image_qa.run(question="What is this?", max_new_tokens=64)
    assert caught.value.code == "unsupported"
    assert "text" in str(caught.value)
