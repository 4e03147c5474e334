"""What every part that keeps processes for several users needs: fair order, and whom to blame."""
