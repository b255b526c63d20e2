class Platform:
    def is_cuda(self) -> bool:
        return False


current_platform = Platform()
