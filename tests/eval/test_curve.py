"""The loss curve has both losses."""

from xml.etree import ElementTree

from gesso.eval.curve import POINTS, loss_curve


def test_loss_curve_has_training_and_held_out_losses():
    metrics = [
        {"step": step, "loss": 4 / step, **({"held_out": 2.0} if step % 50 == 0 else {})} for step in range(1, 201)
    ]
    drawn = loss_curve(metrics, "Loss of faq")
    ElementTree.fromstring(drawn)
    assert "training" in drawn and "held out: 2 at 50, 2 at 100, 2 at 150, 2 at 200" in drawn
    assert drawn.count("<title>training") <= POINTS + 10
    assert "held out" not in loss_curve([{"step": 1, "loss": 4.0}], "Loss of faq")
